// Model of `once`: a register in which each run claims the name and then puts its result, by one round of CASPaxos each.
// The lock only gives rising fences here: leases end at any time, and requests are executed at any later time or never.
#pragma once
#include <algorithm>
#include "engine.hpp"

//  G  at most one result is kept, and nobody gets another one
//  H  once a run has begun, no result of an earlier run is kept: what a minority has is decided by the claim
//  I  the claims that were written, and those that results replaced, have rising fences
struct OnceCfg {
  bool claim = true;   // naive without: a run begins when a quorum shows no result
  bool fence = true;   // naive without: a claim takes the place of that of a higher fence
  bool ticket = true;  // naive without: a result takes the place of another run's claim
  bool write = true;   // naive without: a result that one node has is given to the caller at once
};
// Run a has fence a + 1. B numbers of changes; a change takes any one that is free, above those of its run.
template <int N, int K, int B> struct OnceModel : Model {
  enum : uint8_t { IDLE, CLAIM, BEGUN, RESULT, OVER };
  static constexpr int Q = N / 2 + 1;
  // per node: promised and accepted number, per number (bits): promised, accepted
  struct Col { uint8_t promised, accepted, prepared, wrote; };
  // per number: its run + 1, the value it writes, the highest accepted number that its promises told, and how many did
  struct Num { uint8_t run, value, seen, count; };
  // per run: state, number of its present change, run + 1 whose result it got
  struct S { Col c[N]; Num n[B]; uint8_t st[K], cur[K], got[K], begun; };
  OnceCfg cfg;
  explicit OnceModel(OnceCfg c) : cfg(c) {}
  S init() const { S s; memset(&s, 0, sizeof s); return s; }
  void canon(S& s) const {
    for (int i = 0; i < B; i++) {  // what nobody looks at any more
      Num& n = s.n[i];
      if (!n.run || (!n.value && s.st[n.run - 1] != OVER && s.cur[n.run - 1] == i + 1)) continue;
      n.run = 1; n.seen = n.count = 0;
      for (Col& c : s.c) c.prepared &= ~(1 << i);
    }
    for (int a = 0; a < K; a++) if (s.st[a] == OVER) s.cur[a] = 0;
    std::sort(s.c, s.c + N, [](const Col& x, const Col& y) { return memcmp(&x, &y, sizeof x) < 0; });
  }
  // a value: 0 none, else the claim or the result of a run
  static uint8_t claim(int a) { return 2 * a + 2; }
  static uint8_t result(int a) { return 2 * a + 3; }
  static bool kept(int v) { return v & 1; }
  static int run(int v) { return v / 2 - 1; }
  static uint8_t value(const S& s, int number) { return number ? s.n[number - 1].value : 0; }
  static int count(const S& s, uint8_t Col::*which, int i) {
    int n = 0;
    for (const Col& c : s.c) n += c.*which >> i & 1;
    return n;
  }
  uint8_t step(int a, bool claims, uint8_t was) const {
    if (claims) return was && (kept(was) || (cfg.fence && run(was) > a)) ? was : claim(a);
    return was && run(was) != a && (cfg.ticket || kept(was)) ? was : result(a);
  }
  static void learn(S& s, int a, uint8_t v) {
    bool began = s.st[a] == CLAIM && v == claim(a);
    if (kept(v) && (s.st[a] == CLAIM || run(v) == a)) s.got[a] = run(v) + 1;
    s.st[a] = began ? BEGUN : OVER;
    if (began) s.begun |= 1 << a;
  }
  enum : uint32_t { START, PROMISE, CHOOSE, ACCEPT, LEARN };
  template <class F> void next(const S& s, F emit) const {
    for (int a = 0; a < K; a++) {
      if ((a && s.st[a - 1] == IDLE) || s.st[a] == OVER) continue;
      for (int i = s.cur[a]; i < B; i++) {  // begins a change, or gives up its number
        if (s.n[i].run) continue;
        S t = s; t.n[i].run = a + 1; t.cur[a] = i + 1;
        if (s.st[a] == IDLE || s.st[a] == BEGUN) t.st[a]++;
        emit(t, act(START, a, i, 0));
      }
      if (s.st[a] != CLAIM && s.st[a] != RESULT) continue;
      int i = s.cur[a] - 1;
      const Num& n = s.n[i];
      if (n.value) {
        if (count(s, &Col::wrote, i) >= Q) { S t = s; learn(t, a, n.value); emit(t, act(LEARN, a, i, 0)); }
        continue;
      }
      for (int j = 0; j < N; j++) {
        const Col& c = s.c[j];
        if (c.promised > i || c.prepared >> i & 1) continue;
        S t = s; Num& m = t.n[i];
        t.c[j].promised = i + 1; t.c[j].prepared |= 1 << i;
        if (c.accepted > m.seen) { m.seen = c.accepted; m.count = 0; }
        if (c.accepted == m.seen) m.count++;
        emit(t, act(PROMISE, a, i, j));
      }
      if (count(s, &Col::prepared, i) < Q) continue;
      uint8_t was = value(s, n.seen), v = step(a, s.st[a] == CLAIM, was);
      S t = s;
      if (v == was && (n.count >= Q || (!cfg.write && kept(v)))) learn(t, a, v);
      else if (s.st[a] == CLAIM && !cfg.claim && !kept(v)) learn(t, a, claim(a));
      else t.n[i].value = v;
      emit(t, act(CHOOSE, a, i, 0));
    }
    for (int i = 0; i < B; i++) for (int j = 0; j < N && s.n[i].value; j++) {
      if (s.c[j].promised > i + 1 || s.c[j].wrote >> i & 1) continue;
      S t = s; t.c[j].promised = t.c[j].accepted = i + 1; t.c[j].wrote |= 1 << i;
      emit(t, act(ACCEPT, run(s.n[i].value), i, j));
    }
  }
  const char* bad(const S& s) const {
    int only = 0, last = 0;  // the result that is kept, the highest run so far
    auto other = [&](int a) { bool is = only && only != a; only = a; return is; };
    for (int i = 0; i < B; i++) {
      uint8_t v = s.n[i].value;
      if (!v || count(s, &Col::wrote, i) < Q) continue;
      if (kept(v) && other(run(v) + 1)) return "G: two results are kept";
      if (kept(v) && s.begun >> (run(v) + 1)) return "H: a result is kept after a later run has begun";
      if (run(v) + 1 < last) return "I: a run takes the place of a later one";
      last = run(v) + 1;
    }
    for (uint8_t a : s.got) {
      if (a && other(a)) return "G: somebody gets another result";
      if (a && s.begun >> a) return "H: somebody has the result of an earlier run";
    }
    return nullptr;
  }
  std::string show(uint32_t x, const S&, const S& after) const {
    const int i = x >> 16 & 255; char b[100];
    static const char* what[] = {"begins a change", "is promised by node", "writes", "is accepted by node", "learns"};
    snprintf(b, 100, "%c number %d: %s", 'A' + (x >> 8 & 255), i + 1, what[x & 255]);
    std::string o = b, v = words(after.n[i].value);
    return (x & 255) == PROMISE || (x & 255) == ACCEPT ? o + " " + char('1' + (x >> 24)) : (x & 255) == CHOOSE ? o + " " + v : o;
  }
  static std::string words(uint8_t v) { return !v ? "nothing" : std::string(kept(v) ? "result " : "claim ") + char('A' + run(v)); }
  std::string dump(const S& s) const {
    std::string o = "nodes:";
    for (const Col& c : s.c) o += text(" [promised=%d %d=%s]", c.promised, c.accepted, words(value(s, c.accepted)).c_str());
    return o;
  }
};
