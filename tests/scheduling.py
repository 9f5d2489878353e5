"""Which tests run on one worker of xdist, those that share servers, and which begin first.

A Cluster or a group behind Sentinels takes seconds to start. Each is started once per worker, and
by default every worker gets tests of every deployment, so each worker would start all of them.
"""

import re
from typing import Any

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

DEPLOYMENT = re.compile(r"[\[-]((?:\d|acks\w+|sentinel|cluster|durable)-(?:tcp|unix|tls)-)(.+)\]")
"""The first two parts and the rest of a parameter set that names a face of tests/contract."""
WHOLE_FILE = re.compile(r"tests/(?:replicated/\w+|docs/test_pictures|fencing/test_postgresql)\.py")
"""Tests of one topology or PostgreSQL server, and those of the pages, which are built once."""
LONG = re.compile(
    r"^(group|sentinel|cluster)-|tests/replicated/|tests/docs/test_pictures|tests/typing/"
    r"|test_the_rules_tests_catch|test_a_night_with_the_page|test_ctrl_c_at_any_moment"
    r"|test_a_rolling_restart_|test_a_step_from_the_first|test_planted_misconfigurations"
    r"|test_applications\.py::test_it_goes_right|tests/model/.*\[(K6|J2)\]"
    r"|test_a_handler_that_raises_leaves_nothing_held|test_random_schedules|test_whose_ticket_was"
    r"|tests/benchmarks/test_(runner|workers)|test_the_installed_tools|test_settings_that_differ"
    r"|test_lost_quorum_ends|test_closed_standard_files|test_celery|test_what_goes_on_outlives"
)
"""What takes ten seconds or more, and two tests that wait for the compiler. It begins early: begun
last, one of them would run alone while the other workers have nothing left to do."""


class ByServers(LoadScopeScheduling):  # type: ignore[misc]
    """Tests of one deployment go to one worker; all others go to any worker, one by one."""

    def _split_scope(self, nodeid: str) -> str:
        return shared(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        if not self.assigned_work.get(node):
            for scope in [scope for scope in self.workqueue if LONG.search(scope)]:
                self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget what is complete: after each test xdist looks at all that a node was given."""
        super().mark_test_complete(node, item_index, duration)
        scope = shared(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]


def shared(nodeid: str) -> str:
    """Return what a test shares with others, or the test itself."""
    if found := DEPLOYMENT.search(nodeid):
        kind, rest = found.groups()
        kind = re.sub("^acks[a-z0-9]+", "group", kind)  # one group serves all numbers of replicas
        return kind + ("all-frozen" if rest.startswith("all-frozen") else rest.split("-")[0])
    if found := WHOLE_FILE.match(nodeid):
        return found[0]
    return nodeid
