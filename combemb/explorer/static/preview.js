// The map on a plain canvas, at once: it is there while plotly's script is still being read.

/** Draw the traces of the map where plotly will draw them. */
export function preview(canvas, traces, [xRange, yRange]) {
  const { clientWidth: width, clientHeight: height } = canvas.parentElement;
  canvas.width = width * devicePixelRatio;
  canvas.height = height * devicePixelRatio;
  const pixel = Math.max((xRange[1] - xRange[0]) / width, (yRange[1] - yRange[0]) / height);
  const [xMiddle, yMiddle] = [xRange, yRange].map(([low, high]) => (low + high) / 2);
  const context = canvas.getContext("2d");
  context.scale(devicePixelRatio, devicePixelRatio);
  for (const { x, y, marker } of traces) {
    const radius = marker.size / 2;
    const add = marker.symbol === "diamond" ? addDiamond : addDot;
    context.fillStyle = marker.color;
    context.globalAlpha = marker.opacity;
    context.beginPath();
    x.forEach((_, i) =>
      add(context, width / 2 + (x[i] - xMiddle) / pixel, height / 2 - (y[i] - yMiddle) / pixel, radius),
    );
    context.fill();
  }
}

function addDot(context, x, y, radius) {
  if (radius < 2) return context.rect(x - radius, y - radius, 2 * radius, 2 * radius); // nobody sees the difference
  context.moveTo(x + radius, y);
  return context.arc(x, y, radius, 0, 2 * Math.PI);
}

function addDiamond(context, x, y, radius) {
  context.moveTo(x, y - radius);
  context.lineTo(x + radius, y);
  context.lineTo(x, y + radius);
  context.lineTo(x - radius, y);
  context.closePath();
}
