"use strict";

/* Elements. Text always goes in as text: a class may be called anything, markup too. */

const SVG = document.querySelector("svg").namespaceURI;

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

const html = (name, attributes = {}, ...children) => build(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => build(document.createElementNS(SVG, name), attributes, children);
const find = (selector) => document.querySelector(selector);
const muted = (words) => html("span", { class: "muted" }, words);
const bar = (share) => html("div", { style: `width: ${100 * share}%` });

/* Numbers as people read them. JSON has no infinity: it comes as a word. */

const NONE = "–";
const number = (value) => (value === "inf" ? Infinity : value);
const decimal = (x, digits = 3) => (x === null ? NONE : Number.isFinite(x) ? x.toFixed(digits) : "∞");
const percent = (x, digits = 1) => (x === null ? NONE : `${(100 * x).toFixed(digits)} %`);
const whole = (x) => Math.round(x).toLocaleString("en");
const small = (x) => (x === null ? NONE : Number(x.toPrecision(3)).toString());
const cut = (words, letters) => (words.length > letters ? `${words.slice(0, Math.max(letters - 1, 1))}…` : words);

function points(x) {
  if (x === null) return NONE;
  const shown = Math.abs(100 * x).toFixed(1);
  return `${shown === "0.0" ? "±" : x > 0 ? "+" : "−"}${shown}`;
}

function duration(seconds) {
  if (seconds < 0.05) return "< 0.1 s";
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const all = Math.round(seconds), minutes = Math.floor(all / 60);
  return minutes < 60 ? `${minutes} min ${all % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function mean(numbers) {
  const there = numbers.filter((x) => x !== null);
  return there.length ? there.reduce((sum, x) => sum + x, 0) / there.length : null;
}

/* Ascending or descending by a key; what is missing stays at the end. */
function sorted(things, key, descending) {
  const order = new Intl.Collator("en", { numeric: true }).compare;
  return [...things].sort((a, b) => {
    const [p, q] = [key(a), key(b)];
    if (p === null || q === null) return (p === null) - (q === null);
    const way = typeof p === "string" ? order(p, q) : p - q;
    return descending ? -way : way;
  });
}

/* Tables. */

const column = (label) => html("th", { scope: "col" }, label);
const row = (name, cells) => html("tr", {}, html("th", { scope: "row", title: name }, name), ...cells);
const cells = (values) => values.map((value) => html("td", {}, value));

/* A heading that sorts, and says so to those who cannot see its arrow. */
function heading(label, active, descending, press) {
  const sort = active ? (descending ? "descending" : "ascending") : null;
  return html("th", { scope: "col", "aria-sort": sort }, html("button", { type: "button", click: press }, label));
}

/* New rows. A redrawn heading is a new element, too: the focus goes on where it was. */
function fill(table, headings, rows) {
  const buttons = () => [...table.querySelectorAll("thead button")];
  const held = buttons().indexOf(document.activeElement);
  table.replaceChildren(html("thead", {}, ...headings), html("tbody", {}, ...rows));
  if (held >= 0) buttons()[held].focus();
  return table;
}
