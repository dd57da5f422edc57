// A click on an item leads to its cluster, a button of a cluster marks its items, a double click removes the marks.
const plot = document.getElementById("map");
const mark = (rows) => Plotly.restyle(plot, {selectedpoints: rows}, [0, 1]);
const rowsOf = (trace, cluster) => (trace.customdata || []).flatMap((about, row) => about[0] === cluster ? [row] : []);
plot.on("plotly_click", (event) => { location.hash = "cluster-" + event.points[0].customdata[0]; });
plot.on("plotly_doubleclick", () => mark([null, null]));
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-cluster]");
  if (!button) return;
  mark(plot.data.map((trace) => rowsOf(trace, Number(button.dataset.cluster))));
  plot.scrollIntoView({block: "center"});
});
