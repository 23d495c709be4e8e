// The operator's page: it receives a state document each second and shows it.
//
// The page only reads. The view of the store (store.js) speaks S3 with the user's own key.

import { element, fill, keep, setAttribute, setText, setValue } from "./dom.js";
import { count } from "./format.js";
import { graphOf } from "./graph.js";
import { updatePanels } from "./panels.js";
import { keepsObjects } from "./servers.js";
import { History } from "./state.js";
import { Store } from "./store.js";
import { Tiles } from "./tiles.js";
import { Topology, edgeRows } from "./topology.js";

/** A document is due each second; the page tells when none has come for so long. */
const STALE_MS = 5000;
const RETRY_MS = 2000;
const MAX_EDGES = 200;

const byId = (id) => document.getElementById(id);

class Page {
  #history = new History();
  #topology = new Topology(byId("topology"));
  #tiles = new Tiles(byId("tiles"));
  #store = new Store(byId("store-view"));
  #view = null;
  #receivedAt = null;
  #isPaused = false;
  #isStale = null;

  start() {
    this.#listen();
    setInterval(() => this.#showFreshness(), 1000);
    addEventListener("hashchange", () => this.#showView(true));
    addEventListener("resize", () => this.#redraw());
    byId("pause").addEventListener("click", () => this.#togglePause());
    byId("basis").addEventListener("change", () => this.#redraw());
    this.#showView(false);
  }

  // An EventSource connects again after a broken connection, but not after an answer that is an
  // error.
  #listen() {
    const events = new EventSource("/events");
    events.onmessage = ({ data }) => this.#receive(data);
    events.onerror = () => {
      if (events.readyState === EventSource.CLOSED) setTimeout(() => this.#listen(), RETRY_MS);
      this.#showFreshness();
    };
  }

  #receive(data) {
    const startedAt = performance.now();
    const doc = JSON.parse(data);
    this.#receivedAt = Date.now();
    const isFirst = this.#view === null;
    this.#view = this.#history.add(doc);
    this.#store.offer(doc.store_urls ?? []);
    this.#showFreshness();
    if (this.#isPaused) return;
    this.#draw();
    // Only now it is known whether there is a store.
    if (isFirst) this.#showView(false);
    this.#tiles.update(this.#view);
    this.#topology.move(this.#view.moves.filter((move) => move.isNew));
    // The browser's tools show how long updates take. Measures would pile up otherwise.
    performance.clearMeasures("update");
    performance.measure("update", { start: startedAt });
  }

  #redraw() {
    if (this.#view && !this.#isPaused) this.#draw();
  }

  #draw() {
    const { doc } = this.#view;
    showHeader(doc);
    showAlerts(doc.alerts ?? []);
    const graph = graphOf(this.#view);
    byId("legend").hidden = !this.#view.nodes.some((node) => node.isFrontend);
    this.#topology.draw(graph);
    fill(byId("edges"), edgeRows(graph, MAX_EDGES), "There are no edges.");
    updatePanels(this.#view, document.querySelector("#basis input:checked").value === "opened");
  }

  #togglePause() {
    this.#isPaused = !this.#isPaused;
    setAttribute(byId("pause"), "aria-pressed", this.#isPaused);
    this.#showFreshness();
    this.#redraw();
  }

  // The text counts seconds. A screen reader hears the changes of the state only.
  #showFreshness() {
    const silent_ms = Date.now() - (this.#receivedAt ?? performance.timeOrigin);
    const isStale = silent_ms >= STALE_MS;
    const state = isStale
      ? "stale"
      : this.#receivedAt === null
        ? "connecting"
        : this.#isPaused
          ? "paused"
          : "live";
    const text = isStale ? `no data since ${count(silent_ms / 1000)} s` : state;
    setText(byId("freshness"), text);
    setAttribute(byId("connection"), "class", state);
    document.body.classList.toggle("stale", isStale);
    if (isStale !== this.#isStale && this.#isStale !== null) {
      setText(
        byId("announcer"),
        isStale ? "The page receives no data." : "The page receives data again.",
      );
    }
    this.#isStale = isStale;
  }

  #showView(hasFocus) {
    const isStore = location.hash === "#store" && !byId("to-store").hidden;
    byId("cluster-view").hidden = isStore;
    byId("store-view").hidden = !isStore;
    setAttribute(byId("to-cluster"), "aria-current", isStore ? null : "page");
    setAttribute(byId("to-store"), "aria-current", isStore ? "page" : null);
    this.#redraw();
    if (hasFocus && ["#store", "#cluster"].includes(location.hash)) byId("main").focus();
  }
}

function showHeader(doc) {
  const name = doc.cluster?.cluster ?? { serve: "serve", switch: "switch" }[doc.kind] ?? "";
  setText(byId("cluster-name"), name);
  setText(byId("asked"), `${doc.name} · ${doc.version}`);
  // The tables of the switch have its numbers.
  byId("edges").closest("details").hidden = doc.kind === "switch";
  byId("to-store").hidden = (doc.store_urls ?? []).length === 0;
  document.title = name ? `Prism: ${name}` : "Prism";
  const { cluster } = doc;
  if (cluster) {
    setValue(
      byId("phase"),
      "cluster.epoch",
      cluster.epoch,
      keepsObjects(doc) ? `epoch ${cluster.epoch} · ${cluster.phase}` : "",
    );
    setText(
      byId("replicas"),
      `replicas: ${cluster.replicas}, at least ${cluster.min_replicas ?? 1} for a write`,
    );
  }
}

// A text stays the same while its cause does, so that a screen reader says each only once.
function showAlerts(alerts) {
  const found = alerts.map((alert) => ({ id: alert.text, ...alert }));
  const quiet = { id: "quiet", level: "good", text: "No alerts", remedy: "" };
  const items = found.length > 0 ? found : [quiet];
  const marks = { critical: "✕", warning: "▲", good: "●" };
  const make = ({ level, text, remedy }) =>
    element(
      "li",
      { class: `alert ${level}` },
      element("span", { class: "mark", "aria-hidden": "true" }, marks[level]),
      element("strong", {}, level === "good" ? text : `${level}: ${text}`),
      element("span", {}, remedy),
    );
  keep(document.querySelector("#alerts ul"), items, make, () => {});
  setAttribute(byId("alerts"), "data-value", "alerts");
  setAttribute(byId("alerts"), "data-raw", found.length);
}

new Page().start();
