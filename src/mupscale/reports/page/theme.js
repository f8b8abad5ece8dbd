"use strict";
// Colours and shapes, for a light page, a dark one and paper.
document.documentElement.classList.add("scripted");

const page = JSON.parse(document.getElementById("page-data").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const onPaper = window.matchMedia("print");
let printing = false;

const DARK_COLOURS = ["#58a6ff", "#ff8a3d", "#2fcf9f", "#e39cc3", "#f2b632", "#9bd3f5"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "hexagon", "star"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
// Viridis in nine steps: light is a low loss, as in the figures for papers, and equal steps look equal to every reader.
const RAMP = ["#fde725", "#addc30", "#5ec962", "#28ae80", "#21918c", "#2c728e", "#3b528b", "#472d7b", "#440154"];

function isDark() {
  return dark.matches && !printing;
}

function ink() {
  return isDark()
    ? { text: "#c9ced4", quiet: "#a5adb6", grid: "#2b3137", line: "#59626b", paper: "#191d21", none: "#4a5159" }
    : { text: "#33383e", quiet: "#565d66", grid: "#e8eaed", line: "#9aa1a9", paper: "#ffffff", none: "#d4d7da" };
}

function colourOf(index) {
  const colours = isDark() ? DARK_COLOURS : page.colours;
  return colours[index % colours.length];
}

function onRamp(share) {
  const place = Math.max(0, Math.min(1, share)) * (RAMP.length - 1);
  const lower = Math.min(Math.floor(place), RAMP.length - 2);
  const part = (hex, at) => parseInt(hex.slice(at, at + 2), 16);
  const mixed = [1, 3, 5].map((at) => {
    const low = part(RAMP[lower], at);
    return Math.round(low + (place - lower) * (part(RAMP[lower + 1], at) - low));
  });
  return `rgb(${mixed.join(",")})`;
}

// Names become part of a label that the library reads as markup: none of theirs may be.
function inert(text) {
  const short = text.length > 80 ? `${text.slice(0, 79)}…` : text;
  return short.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function drawn(name, attributes, children = []) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
