"use strict";
// Everything is drawn without this script; it adds reading with the pointer, switching policies and choosing workloads.
(() => {
  const root = document.documentElement;
  const names = JSON.parse(document.getElementById("names").textContent);
  const readout = document.getElementById("readout");
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  root.classList.add("live");

  // ---- numbers in words, as in wording.py
  const three = (value) => {
    if (value === 0) return "0";
    const places = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
    return value.toFixed(Math.min(places, 4));
  };
  const clock = (s) => {
    if (s < 1) return s <= 0 ? "0 s" : three(s * 1e3) + " ms";
    if (s < 90) return three(s).slice(0, 4).replace(/\.$/, "") + " s";
    if (s < 1800) return (s / 60).toFixed(s < 600 ? 1 : 0) + " min";
    if (s < 360000) return (s / 3600).toFixed(s < 36000 ? 2 : 1) + " h";
    return (s / 86400).toFixed(1) + " d";
  };
  const words = {
    time: clock, clock, ratio: (v) => (v < 10 ? v.toFixed(2) : three(v)), count: (v) => (v >= 100 ? v.toFixed(0) : three(v)),
    share: (v) => (v / 10).toFixed(v < 100 || v > 990 ? 1 : 0) + " %",
  };

  // ---- the read-out beside the pointer
  const show = (event, ...content) => {
    readout.replaceChildren(...content);
    readout.hidden = false;
    const { width, height } = readout.getBoundingClientRect();
    const right = event.clientX + 18 + width < innerWidth;
    readout.style.left = (right ? event.clientX + 16 : Math.max(4, event.clientX - 16 - width)) + "px";
    readout.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 6)) + "px";
  };
  const hide = () => { readout.hidden = true; };
  const make = (tag, text, className) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    return node;
  };
  const paragraphs = (text) => text.split("\n").map((line, index) => make(index ? "div" : "b", line));
  const classOf = (series) => ("p" in series ? "p" + (series.p % 8) : "t" + (series.t % 8));
  const nameOf = (series) => ("p" in series ? names.policies[series.p] : names.types[series.t]);
  const isOff = (index) => off.has(index);

  // ---- charts with a cursor
  const charts = all("script[type='application/json']:not(#names)").map((script) => {
    const svg = script.parentElement.querySelector("svg");
    return { svg, panel: script.closest(".panel"), ...JSON.parse(script.textContent) };
  });
  const cursorOf = (chart, part) => {
    const [left, right, top, bottom] = chart.box;
    if (!chart.cursor) {
      chart.cursor = document.createElementNS(chart.svg.namespaceURI, "line");
      chart.cursor.setAttribute("class", "cursor");
      chart.svg.append(chart.cursor);
    }
    const x = left + part * (right - left);
    for (const [key, value] of Object.entries({ x1: x, x2: x, y1: top, y2: bottom })) chart.cursor.setAttribute(key, value);
    chart.cursor.style.display = "";
  };
  const clear = () => {
    for (const chart of charts) {
      if (chart.cursor) chart.cursor.style.display = "none";
      if (chart.lit) chart.lit.classList.remove("lit");
    }
    hide();
  };
  const valueAt = (chart, part) => {
    const [low, high] = chart.domain;
    return chart.log ? low * Math.pow(high / low, part) : low + part * (high - low);
  };
  const table = (chart, part) => {
    const shown = chart.series.filter((series) => !("p" in series && isOff(series.p)));
    const lines = shown.map((series) => [series, series.v[Math.min(series.v.length - 1, Math.floor(part * series.v.length))]]);
    if (lines.length && "p" in lines[0][0]) lines.sort((a, b) => b[1] - a[1]);
    else lines.reverse();
    const body = make("table");
    for (const [series, value] of lines) {
      const row = body.insertRow();
      row.insertCell().append(make("i", "", "swatch " + classOf(series)), nameOf(series));
      row.insertCell().textContent = value === null ? "–" : words[chart.value](value);
    }
    if (chart.of) {
      const row = body.insertRow();
      row.insertCell().textContent = "in use";
      row.insertCell().textContent = three(lines.reduce((sum, line) => sum + line[1], 0)) + " of " + chart.of;
    }
    return body;
  };
  const held = (row, x) => {
    const found = [];
    for (const path of all("path[data-g]", row)) {
      const counts = path.dataset.g.split(" ");
      path.getAttribute("d").split("M").slice(1).forEach((piece, index) => {
        const [, start, width] = piece.match(/^([\d.]+) [\d.]+h([\d.]+)/).map(Number);
        const type = Number(path.getAttribute("class").match(/t(\d)/)[1]);
        if (x >= start && x <= start + width) found.push(counts[index] + " × " + names.types[type]);
      });
    }
    return found;
  };
  const job = (chart, event, box, part) => {
    const [top, height] = chart.rows;
    const rows = chart.svg.querySelector(".rows").children;
    const y = ((event.clientY - box.top) / box.height) * chart.svg.viewBox.baseVal.height;
    const place = Math.floor((y - top) / height);
    const row = rows[place];
    // The same job lights up under every policy.
    for (const other of charts.filter((one) => one.rows && one.sync === chart.sync)) {
      if (other.lit) other.lit.classList.remove("lit");
      other.lit = other.svg.querySelector(".rows").children[place];
      if (other.lit) other.lit.classList.add("lit");
    }
    if (!row) return [];
    const x = chart.box[0] + part * (chart.box[1] - chart.box[0]);
    const now = held(row, x);
    return [...paragraphs(row.dataset.t), make("div", "at " + clock(valueAt(chart, part)) + ": " + (now.join(", ") || "no GPU"))];
  };
  for (const chart of charts) {
    chart.svg.addEventListener("pointermove", (event) => {
      const box = chart.svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * chart.svg.viewBox.baseVal.width;
      const part = (x - chart.box[0]) / (chart.box[1] - chart.box[0]);
      if (part < 0 || part > 1) return clear();
      for (const other of charts) if (other === chart || (chart.sync && other.sync === chart.sync)) cursorOf(other, part);
      if (chart.rows) {
        const content = job(chart, event, box, part);
        return content.length ? show(event, ...content) : hide();
      }
      return show(event, make("b", words[chart.x](valueAt(chart, part) * (chart.x === "share" ? 1000 : 1))), table(chart, part));
    });
    chart.svg.addEventListener("pointerleave", clear);
  }
  for (const mark of all("svg [data-t]").filter((node) => !node.closest(".rows"))) {
    mark.addEventListener("pointermove", (event) => show(event, ...paragraphs(mark.dataset.t)));
    mark.addEventListener("pointerleave", hide);
  }
  // A title element would pop up over the read-out; a label says the same to those who listen.
  for (const title of all("svg > title")) {
    title.parentElement.setAttribute("aria-label", title.textContent);
    title.parentElement.removeAttribute("aria-labelledby");
    title.parentElement.setAttribute("aria-describedby", title.nextElementSibling.id);
    title.remove();
  }

  // ---- policies on and off, in all charts at once
  const off = new Set();
  const chips = all("[data-toggle]").filter((chip) => chip.dataset.toggle !== "all");
  const apply = () => {
    for (const node of all("[data-p]")) node.classList.toggle("off", isOff(Number(node.dataset.p)));
    for (const chip of chips) chip.setAttribute("aria-pressed", String(!isOff(Number(chip.dataset.toggle))));
  };
  const focus = (index) => {
    root.classList.toggle("focus", index !== null);
    for (const node of all("[data-p]")) node.classList.toggle("on", Number(node.dataset.p) === index);
  };
  for (const chip of chips) {
    const index = Number(chip.dataset.toggle);
    chip.addEventListener("click", () => { if (!off.delete(index)) off.add(index); focus(null); apply(); });
    chip.addEventListener("dblclick", () => {
      off.clear();
      for (const other of chips) if (other !== chip) off.add(Number(other.dataset.toggle));
      apply();
    });
    chip.addEventListener("pointerenter", () => { if (!isOff(index)) focus(index); });
    chip.addEventListener("pointerleave", () => focus(null));
  }
  for (const button of all("[data-toggle=all]")) button.addEventListener("click", () => { off.clear(); apply(); });

  // ---- workloads, and paper
  const pick = document.getElementById("scene");
  if (pick) pick.addEventListener("change", () => { for (const scene of all(".scene")) scene.hidden = scene.id !== pick.value; });
  addEventListener("beforeprint", () => { for (const folded of all("details")) folded.open = true; });
})();
