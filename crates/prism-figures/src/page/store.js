// The view of the store: buckets and objects, with the user's own key.
//
// It neither deletes nor changes objects, but an upload replaces an object of the same name.

import { element, keep, setText } from "./dom.js";
import { bytes, count, NONE } from "./format.js";
import { Client } from "./s3.js";

export class Store {
  #root;
  #client = null;
  #bucket = "";
  #prefix = "";

  constructor(root) {
    this.#root = root;
    this.#on("#key", "submit", (event) => this.#signIn(event));
    this.#on("#forget", "click", () => this.#forget());
    this.#on("#upload", "submit", (event) => this.#upload(event));
    this.#on("#first-page", "click", () => this.#open(this.#bucket, this.#prefix));
  }

  /** Offers endpoints. The page may connect to no other ones. */
  offer(urls) {
    const select = this.#find("#key select");
    const options = urls.map((url) => ({ id: url }));
    keep(
      select,
      options,
      ({ id }) => element("option", {}, id),
      () => {},
    );
  }

  #find(selector) {
    return this.#root.querySelector(selector);
  }

  #on(selector, event, handler) {
    this.#find(selector).addEventListener(event, handler);
  }

  #say(text) {
    setText(this.#find("#store-status"), text);
  }

  // Runs a request, and shows its error. Returns whether it succeeded.
  async #attempt(text, work) {
    setText(this.#find("#store-error"), "");
    this.#say(text);
    try {
      await work();
      return true;
    } catch (error) {
      this.#say("");
      setText(this.#find("#store-error"), error.message);
      return false;
    }
  }

  async #signIn(event) {
    event.preventDefault();
    const { endpoint, region, access, secret } = event.target.elements;
    const key = { access: access.value, secret: secret.value, region: region.value };
    this.#client = new Client(endpoint.value, key);
    if (!(await this.#openBuckets())) return;
    // The form shows the secret key no longer than it needs it.
    secret.value = "";
    this.#find("#forget").hidden = false;
  }

  #forget() {
    this.#client = null;
    this.#find("#key").reset();
    this.#find("#browser").hidden = true;
    this.#find("#forget").hidden = true;
    this.#say("The page has forgotten the key.");
  }

  #openBuckets() {
    return this.#attempt("The store lists its buckets …", async () => {
      const buckets = await this.#client.buckets();
      [this.#bucket, this.#prefix] = ["", ""];
      const rows = buckets.map(({ name, time }) => ({
        name,
        time,
        open: () => this.#open(name, ""),
      }));
      this.#show(rows, "There are no buckets.", "");
      this.#find("#browser-heading").focus();
      this.#say(`${count(buckets.length)} buckets`);
    });
  }

  #open(bucket, prefix, token = "") {
    return this.#attempt(`The store lists ${bucket}/${prefix} …`, async () => {
      const { prefixes, objects, next } = await this.#client.list(bucket, prefix, token);
      [this.#bucket, this.#prefix] = [bucket, prefix];
      const short = (name) => name.slice(prefix.length) || name;
      const folders = prefixes.map((name) => ({
        name: short(name),
        open: () => this.#open(bucket, name),
      }));
      const files = objects.map((object) => ({
        ...object,
        name: short(object.key),
        download: () => this.#download(object.key),
      }));
      this.#show([...folders, ...files], "Nothing is here.", next, token);
      // The focus was on a row or a crumb that is gone.
      this.#find("#browser-heading").focus();
      this.#say(`${count(folders.length)} prefixes and ${count(files.length)} objects`);
    });
  }

  #show(rows, whenEmpty, next, token) {
    this.#find("#browser").hidden = false;
    this.#find("#upload").hidden = !this.#bucket;
    setText(this.#find("#browser-heading"), this.#bucket ? `Bucket ${this.#bucket}` : "Buckets");
    this.#crumbs();
    const body = this.#find("#contents tbody");
    const empty = element("tr", {}, element("td", { colspan: "5", class: "empty" }, whenEmpty));
    body.replaceChildren(...(rows.length > 0 ? rows.map(rowOf) : [empty]));
    const [first, following] = [this.#find("#first-page"), this.#find("#next-page")];
    first.hidden = !token;
    following.hidden = !next;
    following.onclick = () => this.#open(this.#bucket, this.#prefix, next);
    setText(this.#find("#page-text"), next ? "There are more pages." : "");
  }

  // The way from the list of buckets to this prefix.
  #crumbs() {
    const crumb = (text, open) => {
      const button = element("button", { type: "button", class: "link" }, text);
      button.addEventListener("click", open);
      return button;
    };
    const parts = this.#prefix
      .split("/")
      .filter((part, index, parts) => part || index < parts.length - 1);
    const crumbs = [crumb("buckets", () => this.#openBuckets())];
    if (this.#bucket) crumbs.push(crumb(this.#bucket, () => this.#open(this.#bucket, "")));
    parts.forEach((part, index) => {
      const prefix = `${parts.slice(0, index + 1).join("/")}/`;
      crumbs.push(crumb(part || "(empty)", () => this.#open(this.#bucket, prefix)));
    });
    crumbs.at(-1).setAttribute("aria-current", "location");
    this.#find("#crumbs").replaceChildren(...crumbs);
  }

  async #upload(event) {
    event.preventDefault();
    const { files } = event.target.elements;
    const progress = this.#find("#upload progress");
    const [bucket, prefix] = [this.#bucket, this.#prefix];
    const chosen = [...files.files];
    if (chosen.length === 0) {
      this.#say("Choose files first.");
      return;
    }
    progress.hidden = false;
    const isDone = await this.#attempt("", async () => {
      for (const file of chosen) {
        this.#say(`${file.name} is sent …`);
        await this.#client.upload(
          bucket,
          `${prefix}${file.name}`,
          file,
          (share) => (progress.value = share),
        );
      }
      files.value = "";
    });
    progress.hidden = true;
    // An upload takes a while, in which the user may have gone elsewhere.
    if (!isDone || bucket !== this.#bucket || prefix !== this.#prefix) return;
    if (await this.#open(bucket, prefix)) this.#say(`${count(chosen.length)} files were uploaded.`);
  }

  async #download(key) {
    const bucket = this.#bucket;
    await this.#attempt(`The download of ${key} begins …`, async () => {
      const { url, name } = await this.#client.link(bucket, key);
      element("a", { href: url, download: name }).click();
      this.#say(`The browser downloads ${key}.`);
    });
  }
}

function rowOf({ name, size, time, etag, open, download }) {
  const button = (text, label, kind, handler) => {
    const made = element("button", { type: "button", class: kind, "aria-label": label }, text);
    made.addEventListener("click", handler);
    return made;
  };
  const title = open ? button(name, `Open ${name}`, "link", open) : name;
  const action = download ? [button("Download", `Download ${name}`, "small", download)] : [];
  return element(
    "tr",
    {},
    element("th", { scope: "row", class: "long" }, title),
    element("td", { class: "number" }, size === undefined ? "" : bytes(size)),
    element("td", {}, time ? time.replace("T", " ").replace(/\.\d+Z|Z/, "") : NONE),
    element("td", { class: "etag" }, etag ?? ""),
    element("td", { class: "number" }, ...action),
  );
}
