// The servers of a service with upstreams, in the boxes of their backends. Pure.

/** Whether the service has servers instead of stores. */
export const hasServers = (doc) => Array.isArray(doc.servers);

const isUnhealthy = ({ state }) => state === "unhealthy";

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
