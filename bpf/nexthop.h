// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Finds next hops: of nodes by their configuration, of other addresses by the kernel's routes
 * and neighbours.
 */
#ifndef PRISM_NEXTHOP_H
#define PRISM_NEXTHOP_H

#include "parse.h"

#define AF_INET 2
#define AF_INET6 10

enum hop {
	HOP_READY,		/* interface and addresses are known */
	HOP_CONFIRM,		/* as HOP_READY; the kernel is to check the neighbour */
	HOP_NEIGHBOUR,		/* interface is known, the neighbour is not */
	HOP_KERNEL,		/* no route, or an address of this host */
};

/* Asks the kernel for the next hop to `addr`, and caches it in `slot`. */
static __noinline int fib_resolve(void *ctx, struct nexthop *slot,
				  const struct ip_addr *addr, __u32 ifindex)
{
	struct bpf_fib_lookup fib ALIGNED = {
		.family = is_mapped(addr) ? AF_INET : AF_INET6,
		/* Not 0, so that the kernel tells the route's MTU. */
		.tot_len = 1,
		.ifindex = ifindex,
	};
	long result;

	if (fib.family == AF_INET)
		fib.ipv4_dst = addr->word[3];
	else
		__builtin_memcpy(fib.ipv6_dst, addr, sizeof(*addr));
	result = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);
	slot->expires_ns = 0;
	slot->ifindex = fib.ifindex;
	copy_addr(&slot->addr, addr);
	/* A gateway may be of the other family. */
	if (fib.family == AF_INET)
		map_addr(&slot->gateway, fib.ipv4_dst);
	else
		__builtin_memcpy(&slot->gateway, fib.ipv6_dst,
				 sizeof(slot->gateway));
	if (result == BPF_FIB_LKUP_RET_NO_NEIGH)
		return HOP_NEIGHBOUR;
	/* An ordinary host is no router. The node is on the link that the packet came by. */
	if (host_mode && result == BPF_FIB_LKUP_RET_FWD_DISABLED)
		return HOP_NEIGHBOUR;
	if (result != BPF_FIB_LKUP_RET_SUCCESS)
		return HOP_KERNEL;
	slot->mtu_bytes = fib.mtu_result;
	__builtin_memcpy((void *)slot->mac, fib.dmac, ETH_ALEN);
	__builtin_memcpy((void *)slot->mac + ETH_ALEN, fib.smac, ETH_ALEN);
	return HOP_READY;
}

/* Whether the address is that of a node which is this host. */
static __always_inline bool is_here(const struct ip_addr *addr)
{
	struct node *node = bpf_map_lookup_elem(&nodes, addr);

	return node && node->roles & ROLE_HERE;
}

/*
 * Whether this packet goes through the kernel to confirm the neighbour. When the kernel sends
 * a packet to a stale neighbour, it resolves it again, and so notices that it is gone or has
 * another address.
 */
static __always_inline bool is_to_confirm(struct nexthop *slot, __u64 now_ns,
					  const bool xdp)
{
	bool is_due = slot->confirm_ns && slot->confirm_ns <= now_ns;

	/* XDP leaves the packet to the tc program, which finds the same state. */
	if (!slot->confirm_ns || (is_due && !xdp))
		slot->confirm_ns = now_ns + nexthop_confirm_ns;
	return is_due;
}

static __noinline int configured_hop(struct nexthop *slot,
				     const struct ip_addr *addr)
{
	struct node *node = bpf_map_lookup_elem(&nodes, addr);

	if (!node || !node->ifindex)
		return 0;
	copy_addr(&slot->addr, addr);
	slot->ifindex = node->ifindex;
	slot->mtu_bytes = node->mtu_bytes;
	__builtin_memcpy((void *)slot->mac, node->node_mac, ETH_ALEN);
	__builtin_memcpy((void *)slot->mac + ETH_ALEN, node->own_mac, ETH_ALEN);
	return 1;
}

/*
 * The next hop to `addr`. Next hops are cached per CPU, not per flow: a switch has far fewer
 * of them than flows, and no two CPUs write the same entry.
 */
static __always_inline int resolve(void *ctx, const struct packet *p,
				   const struct ip_addr *addr,
				   struct nexthop **out, const bool xdp)
{
	__u32 index = mix(addr_word(addr)) & (NEXTHOP_SLOTS - 1);
	struct nexthop *slot = bpf_map_lookup_elem(&nexthops, &index);
	int hop = HOP_READY;

	*out = slot;
	if (!slot)
		return HOP_KERNEL;
	if (same_addr(&slot->addr, addr) && slot->expires_ns > p->now_ns)
		return HOP_READY;
	if (!configured_hop(slot, addr)) {
		hop = fib_resolve(ctx, slot, addr, packet_ifindex(ctx, xdp));
		if (hop == HOP_READY && is_to_confirm(slot, p->now_ns, xdp))
			hop = HOP_CONFIRM;
	}
	if (hop == HOP_READY || (hop == HOP_CONFIRM && !xdp))
		slot->expires_ns = p->now_ns + nexthop_ttl_ns;
	return hop;
}

#endif
