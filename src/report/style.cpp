// The style sheet: system fonts, three palettes (light, dark, print) of which the charts use the same names. The series
// colours are told apart by people who do not see red and green alike.
#include "report/record.h"

namespace faultline::report {

const char* const kStyleSheet = R"css(:root {
  --page: #ffffff; --panel: #f5f6f8; --ink: #1a1d21; --soft: #59616b; --rule: #d9dde2; --grid: #e7eaee;
  --good: #0b7a3b; --bad: #c0282d; --doubt: #96620a; --plain: #47505b;
  --good-back: #eaf6ee; --bad-back: #fcedec; --doubt-back: #fdf4e1; --plain-back: #f1f3f6;
  --c0: #0b67b2; --c1: #c4570a; --c2: #0a8068; --c3: #9a3f8f; --c4: #8a7400; --c5: #4d545c; --c6: #c2185b; --c7: #4f7a00; --heat: #b2182b; --on: #ffffff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --panel: #1d2126; --ink: #e7e9ec; --soft: #a0a8b2; --rule: #343a42; --grid: #2a2f36;
    --good: #5bc98a; --bad: #ff8178; --doubt: #eab14d; --plain: #b3bbc5;
    --good-back: #16281e; --bad-back: #331b1b; --doubt-back: #2f2614; --plain-back: #1f242a;
    --c0: #66b5f5; --c1: #f39a54; --c2: #4fcbb0; --c3: #dd94d4; --c4: #d8c34c; --c5: #b3bbc5; --c6: #ff7aa8; --c7: #a5d14a; --heat: #ff6b5e; --on: #14171b;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 80rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.55rem; line-height: 1.25; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; padding-bottom: .3rem; border-bottom: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.75rem 0 .5rem; overflow-wrap: anywhere; }
p, ul { max-width: 62rem; } p { margin: .5rem 0; }
a { color: var(--c0); }
article + article, section + article { margin-top: 4rem; }
.brand { color: var(--soft); font-size: .85rem; letter-spacing: .04em; margin: 0; }
.verdict, .missing { border-left: 5px solid var(--plain); background: var(--plain-back); border-radius: 4px; padding: .8rem 1.1rem; margin: 1rem 0; }
.verdict.good { border-color: var(--good); background: var(--good-back); }
.verdict.bad { border-color: var(--bad); background: var(--bad-back); }
.verdict.doubt, .missing { border-color: var(--doubt); background: var(--doubt-back); }
.mark { margin: 0; font-size: .8rem; font-weight: 600; color: var(--plain); }
.verdict.good .mark { color: var(--good); } .verdict.bad .mark { color: var(--bad); }
.verdict.doubt .mark, .missing .mark { color: var(--doubt); }
.headline { font-size: 1.2rem; line-height: 1.4; font-weight: 600; margin: .15rem 0 .4rem; overflow-wrap: anywhere; }
.verdict ul, .missing ul { margin: .4rem 0 0; padding-left: 1.2rem; }
li { overflow-wrap: anywhere; margin: .15rem 0; }
.lead { font-weight: 600; } .note { color: var(--soft); font-size: .88rem; }
p.good, div.good { color: var(--good); } p.bad, div.bad { color: var(--bad); }
/* A table that is wider than its place can be moved; a shadow at its edge says so until the end is reached. */
.scroll { overflow-x: auto; margin: .75rem 0; background:
  linear-gradient(to right, var(--page) 40%, transparent) 0 0 / 2.5rem 100% no-repeat local, linear-gradient(to left, var(--page) 40%, transparent) 100% 0 / 2.5rem 100% no-repeat local,
  linear-gradient(to right, var(--soft), transparent) 0 0 / .5rem 100% no-repeat scroll, linear-gradient(to left, var(--soft), transparent) 100% 0 / .5rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: .88rem; min-width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .55rem; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; color: var(--soft); vertical-align: bottom; }
td { overflow-wrap: anywhere; max-width: 30rem; } td:not(.n) { min-width: 5.5rem; } td:not(.n):first-child { min-width: 10.5rem; }
th:first-child, td:first-child { padding-left: 0; }
.n { text-align: right; font-variant-numeric: tabular-nums; } td.n { white-space: nowrap; }
td.good { color: var(--good); } td.bad { color: var(--bad); } td.doubt { color: var(--doubt); }
td pre { min-width: 12rem; max-height: 18rem; overflow-y: auto; margin: .25rem 0; padding: .4rem .6rem; }
pre { background: var(--panel); border-radius: 4px; padding: .7rem .9rem; overflow-x: auto; font: .82rem/1.5 ui-monospace, Menlo, Consolas, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--c0); font-size: .92rem; }
figure { margin: 1.25rem 0; } figcaption { font-size: .88rem; font-weight: 600; margin-bottom: .5rem; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg.wide { max-width: 940px; } svg.narrow { display: none; max-width: 460px; }
.many { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 17.5rem), 1fr)); gap: 0 1.5rem; }
figure.small { margin: .75rem 0; min-width: 0; } figure.small figcaption { font-weight: 400; font-size: .82rem; color: var(--soft); }
text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--ink); }
text.tick { fill: var(--soft); } text.value { font-variant-numeric: tabular-nums; } text.value.doubt { fill: var(--doubt); }
text.on { fill: var(--on); }
.grid { stroke: var(--grid); } .reference { stroke: var(--plain); stroke-dasharray: 4 4; }
.hit { fill: transparent; } .range { stroke-width: 3; stroke-linecap: round; stroke-opacity: .55; }
.range.plain { stroke: var(--plain); } .dot.plain { fill: var(--plain); } .range.bad { stroke: var(--bad); } .dot.bad { fill: var(--bad); }
.range.good { stroke: var(--good); } .dot.good { fill: var(--good); } .range.doubt { stroke: var(--doubt); } .dot.doubt { fill: var(--doubt); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .band { fill-opacity: .16; }
.c0 { --s: var(--c0); } .c1 { --s: var(--c1); } .c2 { --s: var(--c2); } .c3 { --s: var(--c3); } .c4 { --s: var(--c4); } .c5 { --s: var(--c5); }
.c6 { --s: var(--c6); } .c7 { --s: var(--c7); }
.line, .range { stroke: var(--s); } .band, .point, .dot { fill: var(--s); } .key { background: var(--s); }
.heat { fill: var(--heat); } .count { fill: var(--c0); } .heat, .count { stroke: var(--rule); stroke-opacity: .7; } rect.none { fill: var(--grid); }
.legend { display: flex; flex-wrap: wrap; align-items: center; gap: .2rem 1rem; font-size: .82rem; color: var(--soft); margin-top: .35rem; overflow-wrap: anywhere; }
.key { display: inline-block; width: .9em; height: .9em; border-radius: 2px; margin-right: .4em; vertical-align: -.1em; }
.key.none { background: var(--grid); margin-right: -.6em; } .key.dashed { height: 0; border-top: 2px dashed var(--plain); border-radius: 0; vertical-align: .25em; }
.ramp { display: inline-block; width: 6rem; height: .9em; border-radius: 2px; background: linear-gradient(to right, transparent, var(--heat)); border: 1px solid var(--rule); }
.ramp.count { background: linear-gradient(to right, transparent, var(--c0)); }
@media (max-width: 640px) {
  main { padding: 1rem 1rem 3rem; } h1 { font-size: 1.25rem; } td:not(.n):first-child { min-width: 8rem; } .headline { font-size: 1.08rem; }
  svg.wide { display: none; } svg.narrow { display: block; }
}
@media print {
  :root { --page: #fff; --panel: #f3f3f3; --ink: #000; --soft: #444; --rule: #bbb; --grid: #ddd; --good: #0b6a34; --bad: #a81f24;
    --doubt: #7a5006; --plain: #333; --good-back: #fff; --bad-back: #fff; --doubt-back: #fff; --plain-back: #fff;
    --c0: #0b67b2; --c1: #c4570a; --c2: #0a8068; --c3: #9a3f8f; --c4: #8a7400; --c5: #4d545c; --c6: #c2185b; --c7: #4f7a00; --heat: #b2182b; --on: #fff; }
  body { font-size: 10.5pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; } main { max-width: none; padding: 0; }
  svg.wide { display: block; } svg.narrow { display: none; }
  figure, tr, .verdict { break-inside: avoid; } h2, h3 { break-after: avoid; } .scroll { overflow: visible; } table { font-size: 8.5pt; }
  td.n { white-space: normal; } .scroll { background: none; } th, td { padding: .25rem .4rem; }
}
)css";

}  // namespace faultline::report
