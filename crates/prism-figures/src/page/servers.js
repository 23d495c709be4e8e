// The servers of a service with upstreams: what an operator has to know of them. Pure.
//
// `prism ctl status` has the same rules and texts (alerts.rs).

const REMEDY_OF_SERVER = "Look at the server there, and at its log.";
const REMEDY_OF_UPSTREAM = "Its requests are answered 502 to 504. Start a server, or give one back (prism ctl server up).";

/** Whether the service has servers instead of stores. */
export const hasServers = (doc) => Array.isArray(doc.servers);

const isUnhealthy = ({ state }) => state === "unhealthy";
// An unknown server may be well.
const isUsable = (server) => server.gets_requests && !isUnhealthy(server);

/** The names of the upstreams without a server that is likely to answer. */
export function upstreamsDown(servers) {
  const names = [...new Set(servers.map(({ upstream }) => upstream))];
  const of = (name) => servers.filter(({ upstream }) => upstream === name);
  return names.filter((name) => !of(name).some(isUsable));
}

/** Adds the alerts of servers. */
export function ofServers(servers, add) {
  for (const name of upstreamsDown(servers))
    add("critical", `The upstream ${name} has no healthy server`, REMEDY_OF_UPSTREAM);
  for (const { address, backend, upstream, last_fault: fault } of servers.filter(isUnhealthy)) {
    const reason = fault?.reason ?? "it fails";
    add(
      "warning",
      `${address} at ${backend} is unhealthy (upstream ${upstream}): ${reason}`,
      REMEDY_OF_SERVER,
    );
  }
}

/** The state of a backend by its servers in a few words; null if all of them are healthy. */
export function stateByServers(name, doc) {
  const own = (doc.servers ?? []).filter(({ backend }) => backend === name);
  const bad = own.filter(isUnhealthy).length;
  if (bad === 0) return null;
  const isCritical = bad === own.length;
  return {
    level: isCritical ? "critical" : "warning",
    mark: isCritical ? "✕" : "▲",
    text: own.length === 1 ? "unhealthy" : `${bad} of ${own.length} unhealthy`,
  };
}
