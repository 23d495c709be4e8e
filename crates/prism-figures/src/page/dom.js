// Elements, and tables whose rows are kept from one update to the next.
//
// Data reaches the page as text nodes and as attributes only, never as markup. An update
// changes only what differs, so that a screen reader and the layout have little to do.

/** A new element with properties and children. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** A new SVG element with attributes. */
export function svg(tag, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** Sets an element's text if it differs. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** Sets an attribute if it differs; null removes it. */
export function setAttribute(target, name, value) {
  if (value === null || value === undefined) {
    if (target.hasAttribute(name)) target.removeAttribute(name);
  } else if (target.getAttribute(name) !== String(value)) {
    target.setAttribute(name, String(value));
  }
}

/**
 * Makes an element show a number. `key` names it for tests, which compare `raw` with their own
 * figures.
 */
export function setValue(target, key, raw, text) {
  setText(target, text);
  setAttribute(target, "data-value", key);
  setAttribute(target, "data-raw", raw ?? "");
}

/**
 * Keeps the children of `parent` equal to `items`: one child for each, in their order.
 *
 * `make(item)` returns a new child and `change(child, item)` updates it. Items have an `id`.
 */
export function keep(parent, items, make, change) {
  const known = parent.kept ?? (parent.kept = new Map());
  const ids = new Set(items.map((item) => item.id));
  for (const [id, child] of known) {
    if (!ids.has(id)) {
      child.remove();
      known.delete(id);
    }
  }
  let place = parent.firstChild;
  for (const item of items) {
    let child = known.get(item.id);
    if (!child) {
      child = make(item);
      known.set(item.id, child);
    }
    if (child === place) place = place.nextSibling;
    else parent.insertBefore(child, place);
    change(child, item);
  }
}

/**
 * Fills the body of a table. A row has an `id` and `cells`. A cell is a text, or an object with
 * `text` and maybe `raw` and `key` (see `setValue`), `class`, `title`, and `bar` (`from` and
 * `to` as shares of the width) or `progress` (a share, null if it is not known, undefined to
 * hide it).
 * The first cell of a row is its header.
 */
export function fill(table, rows, whenEmpty) {
  const body = table.tBodies[0];
  const items = rows.length > 0 ? rows : [{ id: "", cells: [{ text: whenEmpty, class: "empty" }] }];
  keep(body, items, makeRow, (tr, row) => {
    row.cells.forEach((cell, index) => changeCell(tr.cells[index], cell));
    setAttribute(tr, "class", row.class);
  });
  // The only cell of an empty table is as wide as the table.
  if (rows.length === 0) body.rows[0].cells[0].colSpan = table.tHead.rows[0].cells.length;
}

function makeRow(row) {
  const cells = row.cells.map((cell, index) => {
    const isHeader = index === 0 && row.id !== "";
    const made = element(isHeader ? "th" : "td", isHeader ? { scope: "row" } : {});
    made.append(element("span"));
    if (cell.bar)
      made.append(element("span", { class: "bar", "aria-hidden": "true" }, element("i")));
    if (typeof cell === "object" && "progress" in cell)
      made.prepend(element("progress", { max: "1" }));
    return made;
  });
  return element("tr", {}, ...cells);
}

function changeCell(td, cell) {
  const shown = typeof cell === "string" ? { text: cell } : cell;
  const text = td.querySelector(":scope > span");
  if (shown.key) setValue(text, shown.key, shown.raw, shown.text);
  else setText(text, shown.text);
  setAttribute(td, "class", shown.class);
  setAttribute(td, "title", shown.title);
  if (shown.bar) {
    const filling = td.querySelector("i");
    filling.hidden = shown.bar.to <= shown.bar.from;
    const { style } = filling;
    style.left = `${(100 * shown.bar.from).toFixed(2)}%`;
    style.width = `${(100 * (shown.bar.to - shown.bar.from)).toFixed(2)}%`;
  }
  const progress = td.querySelector("progress");
  if (progress) {
    progress.hidden = shown.progress === undefined;
    setAttribute(progress, "value", shown.progress ?? null);
    setAttribute(progress, "aria-label", shown.label ?? shown.text);
  }
}
