// The parts of a service, and its servers in the boxes of their backends. Pure.

/** Whether the service has upstreams, alone or beside its object store. */
export const hasServers = (doc) => Array.isArray(doc.servers);

/** Whether the service has an object store, alone or beside its upstreams. */
export const keepsObjects = (doc) => doc.service !== "upstream";

const isUnhealthy = ({ state }) => state === "unhealthy";

/** The state of a backend by its servers in a few words; null if none of them is unhealthy. */
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
