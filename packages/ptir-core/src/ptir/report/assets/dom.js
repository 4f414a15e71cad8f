// What all sections share: making elements, the data, and what is chosen in one and shown in all.
const page = JSON.parse(document.getElementById("data").textContent);
const kinds = {};

const fill = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
};
const el = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const choice = { part: null, op: null, heard: [] };
const choose = (part, op = null) => {
  [choice.part, choice.op] = [part, op];
  for (const hear of choice.heard) hear();
};

// A color of its own for every name, of equal weight in dark and light.
const hues = {};
const color = (name) => {
  if (!(name in hues)) hues[name] = (Object.keys(hues).length * 137.5 + 210) % 360;
  return `hsl(${hues[name]} 58% 50%)`;
};
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A canvas as sharp as the screen: calls draw(context, width, height) now and when sizes change.
const sharp = (canvas, height, draw) => {
  canvas.style.height = `${height}px`;
  const redraw = () => {
    const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    draw(context, width, height);
  };
  resized(canvas, redraw);
  themed.push(redraw);
  placed.push(redraw);
  return redraw;
};
// What is drawn again for another theme, and what is drawn once all is in the document.
const themed = [], placed = [];

// Calls when an element got another size, in the next frame: what is drawn then may change sizes.
const resized = (element, call) =>
  new ResizeObserver(() => requestAnimationFrame(call)).observe(element);
