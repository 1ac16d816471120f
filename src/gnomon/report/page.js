// Draws every figure in its place; those over time share zoom and cursor.
const narrow = window.innerWidth < 600;
const plain = {responsive: true, displaylogo: false, displayModeBar: false};
const withTools = {...plain, displayModeBar: narrow ? false : "hover", scrollZoom: true,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "sendChartToCloud"]};
for (const [name, figure] of Object.entries(figures)) {
  const place = document.getElementById(name);
  if (!place) continue;
  const isTall = place.classList.contains("tall"), layout = figure.layout;
  if (narrow) {
    const {l, t} = layout.margin || {};
    layout.margin = {l: isTall ? 58 : Math.min(l || 46, 120), r: 10, t: isTall ? 86 : Math.max(t || 0, 44), b: 40};
    layout.font = {...layout.font, size: isTall ? 10 : 11};
  }
  Plotly.newPlot(place, figure.data, layout, isTall ? withTools : plain);
}
const together = [...document.querySelectorAll(".together .plot")].filter((one) => one.layout);
const copyRange = (from, change) => {
  const range = change["xaxis.range[0]"] === undefined ? undefined : [change["xaxis.range[0]"], change["xaxis.range[1]"]];
  const update = range ? {"xaxis.range": range} : change["xaxis.autorange"] ? {"xaxis.autorange": true} : null;
  if (!update || from.isFollowing) return;
  for (const other of together) {
    if (other === from) continue;
    other.isFollowing = true;
    Plotly.relayout(other, update).then(() => { other.isFollowing = false; });
  }
};
for (const one of together) {
  one.on("plotly_relayout", (change) => copyRange(one, change));
  one.on("plotly_hover", (event) => {
    for (const other of together) if (other !== one) Plotly.Fx.hover(other, [{xval: event.points[0].x}]);
  });
  one.on("plotly_unhover", () => { for (const other of together) if (other !== one) Plotly.Fx.unhover(other); });
}
// In a frame: as high as its content, so that only the page around it scrolls.
if (window.parent !== window) {
  const tell = () => parent.postMessage({gnomonHeight: document.documentElement.scrollHeight}, "*");
  new ResizeObserver(tell).observe(document.body);
  addEventListener("load", tell);
}
