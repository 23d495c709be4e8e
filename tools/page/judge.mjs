// The roles and names that a screen reader meets in the page, and the faults of a report.
// check_page.mjs makes the report.

const LANDMARKS = ["banner", "main", "navigation", "region", "contentinfo"];
const CONTROLS = [
  "link",
  "button",
  "radio",
  "checkbox",
  "textbox",
  "combobox",
  "DisclosureTriangle",
  "disclosureTriangle",
];
const OTHERS = ["table", "img", "image", "progressbar", "status", "alert", "heading"];

/** The roles and names in the tree of the page's accessibility. */
export async function accessibility(tab) {
  const { nodes } = await tab.send("Accessibility.getFullAXTree");
  const named = nodes
    .filter((node) => !node.ignored)
    .map((node) => ({ role: node.role?.value, name: node.name?.value ?? "", node }));
  const pick = (roles) =>
    named.filter(({ role }) => roles.includes(role)).map(({ role, name }) => ({ role, name }));
  const live = ({ node }) =>
    (node.properties ?? []).find(({ name }) => name === "live")?.value.value;
  return {
    landmarks: pick(LANDMARKS),
    controls: pick(CONTROLS),
    others: pick(OTHERS),
    live: named
      .filter((one) => ["polite", "assertive"].includes(live(one)))
      .map(({ role, name }) => ({ role, name }))
      .slice(0, 20),
    row_headers: named.filter(({ role }) => role === "rowheader").length,
    column_headers: named.filter(({ role }) => role === "columnheader").length,
  };
}

/** All that is wrong, in sentences. */
export function problemsOf(report, { url, store }) {
  const problems = [];
  const expect = (isGood, text) => isGood || problems.push(text);
  for (const { type, text } of report.console)
    expect(false, `the console has a message: ${type}: ${text}`);
  for (const text of report.exceptions) expect(false, `an exception: ${text}`);
  for (const issue of report.csp_violations)
    expect(false, `the policy was violated: ${JSON.stringify(issue)}`);
  expect(report.updates.updates >= 2, `the page was updated ${report.updates.updates} times`);
  expect(report.last.connection === "live", `the page says of its data: ${report.last.connection}`);
  expect(report.last.overflow_px <= 0, `the page is ${report.last.overflow_px} px too wide`);
  for (const [scheme, { failures, texts }] of Object.entries(report.contrast)) {
    expect(texts > 20, `only ${texts} texts are visible in ${scheme}`);
    for (const { text, ratio } of failures)
      expect(false, `"${text}" has a contrast of ${ratio} in ${scheme}`);
  }
  for (const text of report.outside) expect(false, `"${text}" leaves its box`);
  const { landmarks, controls, others } = report.accessibility;
  for (const role of ["banner", "main", "navigation"]) {
    expect(
      landmarks.some((one) => one.role === role),
      `there is no landmark ${role}`,
    );
  }
  for (const { role, name } of [...controls, ...others]) {
    // A live region may be empty, and so has no name.
    expect(name || ["status", "alert"].includes(role), `a ${role} has no name`);
  }
  expect(report.tab_stops.length >= 5, `Tab stops at ${report.tab_stops.length} elements`);
  for (const stop of report.tab_stops)
    expect(stop.is_visible, `one does not see the focus at ${stop.tag} ${stop.name}`);
  for (const [what, works] of Object.entries(report.keyboard))
    expect(works, `by keyboard: ${what} fails`);
  const allowed = [new URL(url).origin, store && new URL(store.endpoint).origin];
  for (const origin of report.origins) expect(allowed.includes(origin), `the page asked ${origin}`);
  if (store) for (const text of report.store.problems) problems.push(text);
  return problems;
}
