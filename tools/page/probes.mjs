// Functions that run in the page: each sees nothing but its arguments, and returns JSON.

/** Runs before the page's own code, and counts what the page does. */
export function watch() {
  const seen = { updates: [], dots: 0, mostDots: 0, moves: new Set() };
  globalThis.prismSeen = seen;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries())
      if (entry.name === "update") seen.updates.push(entry.duration);
  }).observe({ entryTypes: ["measure"] });
  const observer = new MutationObserver((changes) => {
    for (const { addedNodes } of changes) {
      for (const node of addedNodes) if (node.classList?.contains("dot")) seen.dots += 1;
    }
    seen.mostDots = Math.max(seen.mostDots, document.querySelectorAll("#topology .dot").length);
    for (const row of document.querySelectorAll("#moves tbody tr")) {
      if (row.cells.length === 4) seen.moves.add(row.textContent);
    }
  });
  document.addEventListener("DOMContentLoaded", () =>
    observer.observe(document.body, { childList: true, subtree: true }),
  );
}

/** The counts of `watch`. */
export function counted() {
  const { updates, dots, mostDots, moves } = globalThis.prismSeen;
  const sum = updates.reduce((all, one) => all + one, 0);
  return {
    updates: updates.length,
    mean_ms: updates.length > 0 ? sum / updates.length : null,
    max_ms: updates.length > 0 ? Math.max(...updates) : null,
    dots,
    most_dots: mostDots,
    moves_listed: moves.size,
  };
}

/** All numbers of the page by their names, and its size. */
export function values() {
  const found = {};
  for (const element of document.querySelectorAll("[data-value]")) {
    const raw = element.dataset.raw;
    found[element.dataset.value] = {
      raw: raw === "" ? null : Number(raw),
      text: element.textContent.trim(),
    };
  }
  return {
    values: found,
    alerts: [...document.querySelectorAll("#alerts li")].map((item) => item.textContent),
    connection: document.getElementById("freshness").textContent,
    title: document.title,
    elements: document.getElementsByTagName("*").length,
    overflow_px: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  };
}

/** The contrast of all visible texts to their background, the worst ones first. */
export function contrasts(most) {
  const parse = (text) => {
    const parts = text.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0];
    return { rgb: parts.slice(0, 3), alpha: parts[3] ?? 1 };
  };
  const over = (top, below) =>
    top.rgb.map((part, index) => part * top.alpha + below[index] * (1 - top.alpha));
  const background = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      // The text of a box of the topology is on the box; other texts there have a rim of the panel's colour.
      const isInBox = at.tagName === "text" && !at.classList.contains("label");
      const color = isInBox
        ? getComputedStyle(document.querySelector("#topology .box rect")).fill
        : getComputedStyle(at).backgroundColor;
      const layer = parse(color);
      if (layer.alpha > 0) layers.push(layer);
      if (layer.alpha === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    const isShown = element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    const isIgnored = ["TITLE", "title", "desc", "SCRIPT", "NOSCRIPT"].includes(element.tagName);
    const isForReaders = element.closest(".hidden, caption");
    if (!node.data.trim() || !isShown || isIgnored || isForReaders) continue;
    const style = getComputedStyle(element);
    const ground = background(element);
    const color = over(parse(element.tagName === "text" ? style.fill : style.color), ground);
    const [dark, light] = [luminance(color), luminance(ground)].sort((one, other) => one - other);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (light + 0.05) / (dark + 0.05);
    found.push({
      text: node.data.trim().slice(0, 40),
      ratio: Math.round(100 * ratio) / 100,
      needed: isLarge ? 3 : 4.5,
    });
  }
  found.sort((one, other) => one.ratio / one.needed - other.ratio / other.needed);
  return {
    texts: found.length,
    worst: found.slice(0, most),
    failures: found.filter(({ ratio, needed }) => ratio < needed),
  };
}

/** The texts of the topology that leave their box. */
export function outside() {
  const boxes = [...document.querySelectorAll("#topology .box rect")].map((rect) => rect.getBBox());
  const found = [];
  for (const text of document.querySelectorAll("#topology text:not(.label)")) {
    const { x, y, width, height } = text.getBBox();
    const isInside = (box) =>
      box.x <= x &&
      x + width <= box.x + box.width &&
      box.y <= y &&
      y + height <= box.y + box.height;
    if (width > 0 && !boxes.some(isInside)) found.push(text.textContent);
  }
  return found;
}

/** The element that has the focus, and whether one sees that. */
export function focused() {
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  const isInside =
    box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
  const hasOutline = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
  element.prismStop ??= Math.random();
  const text = element.labels?.[0]?.textContent ?? element.textContent;
  return {
    tag: element.tagName.toLowerCase(),
    name: (element.getAttribute("aria-label") ?? text).trim().slice(0, 60),
    is_visible: isInside && hasOutline && element.matches(":focus-visible"),
    stop: element.prismStop,
  };
}
