// Numbers as texts for people. Pure: no DOM.

/** Stands for a number that is not known. */
export const NONE = "–";

const grouped = new Intl.NumberFormat("en-US");

const isKnown = (number) => number !== null && number !== undefined && Number.isFinite(number);

// Three significant digits with one of the units, each of them `step` times the one before.
function scaled(number, step, units) {
  let rest = number;
  let index = 0;
  while (rest >= 0.9995 * step && index < units.length - 1) {
    rest /= step;
    index += 1;
  }
  const digits = index === 0 ? 0 : Math.max(0, 2 - Math.floor(Math.log10(Math.max(rest, 1))));
  return `${rest.toFixed(digits)} ${units[index]}`;
}

/** A count in full, with separators. */
export const count = (number) => (isKnown(number) ? grouped.format(Math.round(number)) : NONE);

/** A number of bytes in decimal units. */
export const bytes = (number) =>
  isKnown(number) ? scaled(number, 1000, ["B", "kB", "MB", "GB", "TB", "PB"]) : NONE;

/** Bytes in a second. */
export const byteRate = (number) => (isKnown(number) ? `${bytes(number)}/s` : NONE);

/** Events in a second. */
export function rate(number) {
  if (!isKnown(number)) return NONE;
  if (number === 0) return "0/s";
  if (number < 10) return `${number < 0.1 ? number.toFixed(2) : number.toFixed(1)}/s`;
  return `${count(number)}/s`;
}

/** A short duration. */
export function duration(seconds) {
  if (!isKnown(seconds)) return NONE;
  if (seconds >= 1) return `${seconds.toPrecision(3)} s`;
  if (seconds >= 1e-3) return `${(seconds * 1e3).toPrecision(3)} ms`;
  return `${(seconds * 1e6).toPrecision(seconds < 1e-6 ? 1 : 3)} µs`;
}

/** A long duration in its two largest units. */
export function age(seconds) {
  if (!isKnown(seconds)) return NONE;
  const units = [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ];
  const first = units.findIndex(([, unit]) => seconds >= unit);
  if (first < 0) return "0 s";
  let rest = Math.floor(seconds);
  const parts = units.slice(first, first + 2).map(([name, unit]) => {
    const whole = Math.floor(rest / unit);
    rest -= whole * unit;
    return `${whole} ${name}`;
  });
  return parts.join(" ");
}

/** A share of 1 in percent. */
export function percent(share) {
  if (!isKnown(share)) return NONE;
  // A share close to 1 is not shown as 100 %, nor one close to 0 as 0 %.
  if (share > 0.995 && share < 1) return `${(Math.min(share, 0.9999) * 100).toFixed(2)} %`;
  if (share > 0 && share < 0.01) return `${(Math.max(share, 0.0001) * 100).toFixed(2)} %`;
  return `${Math.round(share * 100)} %`;
}

/** The time of the day of a time in milliseconds. */
export const clock = (ms) => new Date(ms).toTimeString().slice(0, 8);

/** A day. */
export const day = (ms) => new Date(ms).toISOString().slice(0, 10);
