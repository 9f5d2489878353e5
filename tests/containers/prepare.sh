#!/bin/sh
# Makes container tests possible where there is no engine or no image registry, and prints the
# settings to use:
#
#     env $(tests/containers/prepare.sh) nox -s containers
#
# No engine answers: dockerd is started (root only), with a storage driver that needs no kernel
# support; it stays until `prepare.sh stop`. The image cannot be had: one is made of the machine's
# own redis-server and the libraries it is linked with, and the image that testcontainers cleans up
# with cannot be had either.
set -eu

run=${TMPDIR:-/tmp}/asynclock-dockerd
image=${ASYNCLOCK_TEST_IMAGE:-redis:7.2}

say() { echo "$*" >&2; }

answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

start_engine() {
    answers && return
    [ "$(id -u)" = 0 ] || { say "no container engine answers, and only root can start one"; exit 1; }
    command -v dockerd >/dev/null || { say "dockerd is not installed (Debian: docker.io)"; exit 1; }
    mkdir -p "$run"
    say "starting dockerd, log in $run/log"
    setsid dockerd --storage-driver=vfs --data-root "$run/data" --exec-root "$run/exec" \
        --pidfile "$run/pid" >"$run/log" 2>&1 </dev/null &
    for _ in $(seq 300); do
        answers && return
        sleep 0.1
    done
    tail -5 "$run/log" >&2
    exit 1
}

# Only a daemon of ours has its pid file here.
stop_engine() {
    [ -r "$run/pid" ] || return 0
    pid=$(cat "$run/pid")
    kill "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    umount "$run"/exec/netns/* 2>/dev/null || true
    rm -rf "$run"
}

import_local() {
    server=$(command -v redis-server) || { say "no $image, and no redis-server to make one"; exit 1; }
    version=$("$server" --version | sed 's/.*v=\([0-9]*\.[0-9]*\).*/\1/')
    image=redis:$version-local
    docker image inspect "$image" >/dev/null 2>&1 && return
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    mkdir -p "$root/usr/local/bin" "$root/tmp"
    for program in "$server" "$(command -v redis-cli)"; do
        cp -L "$program" "$root/usr/local/bin/"
        ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
            mkdir -p "$root$(dirname "$library")"
            cp -L "$library" "$root$library"
        done
    done
    say "importing $image"
    tar -C "$root" -c . | docker import \
        -c 'CMD ["/usr/local/bin/redis-server","--protected-mode","no"]' -c 'EXPOSE 6379' \
        -c 'ENV PATH=/usr/local/bin:/usr/bin:/bin' - "$image" >&2
}

if [ "${1:-}" = stop ]; then
    stop_engine
    exit
fi
start_engine
docker image inspect "$image" >/dev/null 2>&1 ||
    timeout 120 docker pull --quiet "$image" >&2 ||
    { import_local && echo TESTCONTAINERS_RYUK_DISABLED=true; }
echo "ASYNCLOCK_TEST_IMAGE=$image"
