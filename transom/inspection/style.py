"""The look of pages and pictures: one style sheet, for light and dark, wide and narrow."""

COLOURS = """
:root { color-scheme: light dark;
  --page: #fbfaf7; --card: #ffffff; --ink: #1c2430; --soft: #5a6472; --rule: #e3e0d8; --field: #f4f2ec; --heat: #0b4f8a;
  --line-0: #1f66ad; --line-1: #b8500c; --line-2: #0d7a66; --line-3: #7a3fa8; --good: #1a7340; --warn: #8f4a00; --warn-field: #fdf3e4; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161c; --card: #1a2028; --ink: #e8ebef; --soft: #a3adba; --rule: #303844; --field: #151a21; --heat: #7cc0ff;
  --line-0: #6db3f8; --line-1: #f2a05e; --line-2: #52cdb2; --line-3: #c79bf0; --good: #6ccf94; --warn: #f0b45c; --warn-field: #2c2419; } }
"""

PICTURES = """
svg { font: 12px/1 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
svg text { fill: var(--soft); }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .axis { stroke: var(--soft); stroke-width: 1; }
svg .mark { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3; }
svg .curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
svg .curve.line-1 { stroke-dasharray: 7 4; }
svg .curve.line-2 { stroke-dasharray: 2 4; }
svg .curve.line-3 { stroke-dasharray: 9 3 2 3; }
svg .band { stroke: none; opacity: 0.18; }
svg .line-0 { stroke: var(--line-0); } svg .band.line-0, svg .dot.line-0 { fill: var(--line-0); }
svg .line-1 { stroke: var(--line-1); } svg .band.line-1, svg .dot.line-1 { fill: var(--line-1); }
svg .line-2 { stroke: var(--line-2); } svg .band.line-2, svg .dot.line-2 { fill: var(--line-2); }
svg .line-3 { stroke: var(--line-3); } svg .band.line-3, svg .dot.line-3 { fill: var(--line-3); }
svg .strip { fill: transparent; }
svg .shown { visibility: hidden; pointer-events: none; }
svg .probe:hover .shown { visibility: visible; }
svg .rule { stroke: var(--soft); stroke-width: 1; }
svg .readout, svg .symbol, svg .legend text { fill: var(--ink); }
svg:has(.probe:hover) .legend { visibility: hidden; }
svg .field { fill: var(--field); }
svg .cell { fill: var(--heat); }
svg .cell:hover { stroke: var(--line-1); stroke-width: 2; }
svg .symbol { font-size: 14px; }
svg.pattern .cell:hover { stroke: none; }
svg .asked { stroke: var(--line-1); }
"""

PAGE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main, header, footer { max-width: 1120px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 40px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 21px; line-height: 1.3; margin: 52px 0 14px; padding-top: 14px; border-top: 1px solid var(--rule); }
h3 { font-size: 15px; line-height: 1.4; margin: 0 0 8px; font-weight: 600; }
p { margin: 0 0 12px; max-width: 72ch; }
.lead, .soft, dt, th, summary, footer { color: var(--soft); }
.lead { font-size: 17px; margin-bottom: 18px; }
nav { display: flex; flex-wrap: wrap; gap: 4px 20px; font-size: 15px; margin-bottom: 24px; }
a { color: var(--line-0); text-underline-offset: 3px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px; margin: 0; }
.tiles > div, figure, .sample { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px;
  margin: 0; }
.tiles dt { font-size: 14px; }
.tiles dd { margin: 2px 0 0; font-size: 14px; color: var(--soft); }
.tiles dd.value { font-size: 24px; line-height: 1.35; font-weight: 600; color: var(--ink); font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.curves { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 14px; }
svg.chart { display: block; width: 100%; height: auto; overflow: visible; }
.pictures { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 14px; }
.pictures figure { max-width: 100%; } .pictures figure + figure { margin-top: 0; }
.scroll { overflow-x: auto; }
.seen { display: flex; flex-wrap: wrap; gap: 14px; } .seen figure { margin-top: 0; text-align: center; }
.seen img { width: 96px; height: 96px; image-rendering: pixelated; } .seen figcaption { margin: 6px 0 0; font-size: 14px; }
figure .scroll { max-height: 760px; overflow-y: auto; }
svg.alignment { display: block; max-width: none; }
figure + figure, .sample + .sample { margin-top: 12px; }
.curves figure + figure { margin-top: 0; }
figcaption { font-size: 15px; margin-bottom: 10px; }
table { border-collapse: collapse; font-size: 15px; font-variant-numeric: tabular-nums; margin-bottom: 18px; }
th, td { text-align: left; vertical-align: top; padding: 5px 22px 5px 0; border-bottom: 1px solid var(--rule); }
th { font-weight: 500; } thead th { white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.text { overflow-wrap: anywhere; min-width: 12ch; }
.sample dl { display: grid; grid-template-columns: 104px minmax(0, 1fr); gap: 4px 12px; margin: 0; }
.sample dt { font-size: 14px; line-height: 24px; }
.sample dd { margin: 0; overflow-wrap: anywhere; }
mark { background: none; color: inherit; text-decoration: underline 2px var(--line-1); text-underline-offset: 4px; }
.same { color: var(--good); font-size: 14px; white-space: nowrap; }
.note { background: var(--warn-field); border-left: 4px solid var(--warn); border-radius: 0 8px 8px 0;
  padding: 10px 16px; margin: 0 0 10px; overflow-wrap: anywhere; }
.tiles + .note { margin-top: 14px; }
.note ul { margin: 4px 0 0; padding-left: 20px; }
.good { color: var(--good); }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 4px 40px; }
.blocks { display: flex; flex-wrap: wrap; gap: 4px 56px; margin-top: 16px; } .blocks > div { max-width: 100%; }
details { margin: 14px 0; } summary { cursor: pointer; }
pre { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px;
  white-space: pre-wrap; overflow-wrap: anywhere;
  font: 13.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 0.92em; }
footer { margin-top: 56px; padding-top: 16px; padding-bottom: 40px; font-size: 14px; }
:focus-visible { outline: 2px solid var(--line-0); outline-offset: 2px; }
@media (max-width: 720px) {
  main, header, footer { padding-left: 16px; padding-right: 16px; }
  header { padding-top: 24px; } h1 { font-size: 25px; } h2 { margin-top: 40px; }
  .curves { grid-template-columns: minmax(0, 1fr); }
  svg.chart { font-size: 17px; }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 8px; }
  .tiles > div { padding: 10px 12px; }
  .tiles dd.value { font-size: 22px; }
  figure, .sample { padding: 12px; }
  .sample dl { grid-template-columns: minmax(0, 1fr); gap: 0; } .sample dd { margin-bottom: 8px; }
}
@media print { nav { display: none; } figure, .sample, .tiles > div { break-inside: avoid; } }
"""
