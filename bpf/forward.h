// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Sending a packet on: where to, what is rewritten, and when it is left to the
 * kernel of this host instead.
 *
 * Checksums. In tc, bpf_l4_csum_replace knows packets whose checksum is still
 * to be computed (CHECKSUM_PARTIAL, GSO) and those whose sum the driver gave
 * (CHECKSUM_COMPLETE). Everything else written here leaves the sum of what it
 * covers unchanged. In XDP every packet is whole, and its checksum is updated by
 * hand.
 */
#ifndef PRISM_FORWARD_H
#define PRISM_FORWARD_H

#include "csum.h"
#include "flow.h"

#define AF_INET 2

enum hop {
	HOP_READY,		/* interface and addresses are known */
	HOP_NEIGHBOUR,		/* interface is known, ARP is to be asked */
	HOP_KERNEL,		/* no route, or the address is ours */
};

enum side {
	SIDE_NONE,
	SIDE_SOURCE,
	SIDE_DEST,
};

struct rewrite {
	enum side side;
	__be32 addr;
	__be16 port;
};

static __always_inline int pass(const bool xdp)
{
	/* TC_ACT_UNSPEC: other programs of the interface have their say. */
	return xdp ? XDP_PASS : TC_ACT_UNSPEC;
}

static __always_inline int punt(__u32 reason, const bool xdp)
{
	count(reason);
	return pass(xdp);
}

static __always_inline int drop(__u32 reason, const bool xdp)
{
	count(reason);
	return xdp ? XDP_DROP : TC_ACT_SHOT;
}

static __always_inline __u32 mix(__u32 h)
{
	h ^= h >> 16;
	h *= 0x7feb352d;
	h ^= h >> 15;
	h *= 0x846ca68b;
	return h ^ (h >> 16);
}

/* Asks the kernel for the way to `addr`, and remembers it in `slot`. */
static __noinline int fib_resolve(void *ctx, struct nexthop *slot, __be32 addr,
				  __u32 ifindex)
{
	struct bpf_fib_lookup fib = {
		.family = AF_INET,
		/* Not 0: the kernel then tells the route's MTU. */
		.tot_len = 1,
		.ipv4_dst = addr,
		.ifindex = ifindex,
	};
	long result = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);

	slot->expires_ns = 0;
	slot->ifindex = fib.ifindex;
	if (result == BPF_FIB_LKUP_RET_NO_NEIGH) {
		slot->addr = fib.ipv4_dst; /* the gateway, where there is one */
		return HOP_NEIGHBOUR;
	}
	if (result != BPF_FIB_LKUP_RET_SUCCESS)
		return HOP_KERNEL;
	slot->addr = addr;
	slot->mtu_bytes = fib.mtu_result;
	__builtin_memcpy(&slot->mac[0], fib.dmac, ETH_ALEN);
	__builtin_memcpy(&slot->mac[3], fib.smac, ETH_ALEN);
	return HOP_READY;
}

static __noinline int configured_hop(struct nexthop *slot, __be32 addr)
{
	struct ip_addr key = mapped(addr);
	struct node *node = bpf_map_lookup_elem(&nodes, &key);

	if (!node || !node->ifindex)
		return 0;
	slot->addr = addr;
	slot->ifindex = node->ifindex;
	slot->mtu_bytes = node->mtu_bytes;
	__builtin_memcpy(&slot->mac[0], node->node_mac, ETH_ALEN);
	__builtin_memcpy(&slot->mac[3], node->own_mac, ETH_ALEN);
	return 1;
}

/*
 * The way to `addr`. Next hops are cached per CPU, not per flow: a switch has
 * far fewer of them than flows, and no two CPUs write the same entry.
 */
static __always_inline int resolve(void *ctx, const struct packet *p,
				   __be32 addr, struct nexthop **out,
				   const bool xdp)
{
	__u32 index = mix(addr) & (NEXTHOP_SLOTS - 1);
	struct nexthop *slot = bpf_map_lookup_elem(&nexthops, &index);
	int hop = HOP_READY;

	*out = slot;
	if (!slot)
		return HOP_KERNEL;
	if (slot->addr == addr && slot->expires_ns > p->now_ns)
		return HOP_READY;
	if (!configured_hop(slot, addr))
		hop = fib_resolve(ctx, slot, addr, packet_ifindex(ctx, xdp));
	if (hop == HOP_READY)
		slot->expires_ns = p->now_ns + nexthop_ttl_ns;
	return hop;
}

/* The packet, or a segment of it, is longer than the way allows. */
static __always_inline bool is_too_long(void *ctx, const struct packet *p,
					const struct nexthop *slot,
					const bool xdp)
{
	__u32 l3_bytes = p->bytes - sizeof(struct ethhdr);

	if (!xdp && ((struct __sk_buff *)ctx)->gso_size)
		l3_bytes = p->l4 - sizeof(struct ethhdr) + p->tcp_header_bytes +
			   ((struct __sk_buff *)ctx)->gso_size;
	return slot->mtu_bytes && l3_bytes > slot->mtu_bytes;
}

static __always_inline void head_next_hop(struct head *head,
					  const struct nexthop *slot)
{
	__u32 check = head->ip.check;

	__builtin_memcpy(head->mac, slot->mac, sizeof(head->mac));
	head->protocol = bpf_htons(ETH_P_IP);
	head->ip.ttl--;
	check += bpf_htons(0x0100);
	head->ip.check = check + (check >= 0xffff);
}

/*
 * The TCP checksum for a new address and port, in tc, of a packet without IP
 * options. The kernel alone knows whether the checksum is still to be computed;
 * how its helper changes the field for the address tells, and saves a second
 * call for the port. Where both ways lead to the same value it cannot tell.
 */
static __always_inline long fix_tcp_check_fast(struct __sk_buff *skb,
					       __u16 before, __be32 from,
					       __be16 from_port,
					       const struct rewrite *rw)
{
	const __u32 at = HEAD_BYTES + TCP_CHECK;
	__u16 whole = before;
	__u16 partial = ~before;
	__u16 *check;

	if (bpf_l4_csum_replace(skb, at, from, rw->addr, BPF_F_PSEUDO_HDR | 4))
		return -1;
	if (from_port == rw->port)
		return 0;
	csum_replace4(&whole, from, rw->addr);
	csum_replace4(&partial, from, rw->addr);
	partial = ~partial;
	check = packet_start(skb, false) + at;
	if ((void *)(check + 1) > packet_end(skb, false))
		return -1;
	if (whole == partial || (*check != whole && *check != partial))
		return bpf_l4_csum_replace(skb, at, from_port, rw->port, 2);
	if (*check == whole) {
		csum_replace2(&whole, from_port, rw->port);
		*check = whole;
	}
	return 0;
}

/* The same for any packet. */
static __always_inline long fix_tcp_check(void *ctx, struct packet *p,
					  __be32 from, __be16 from_port,
					  const struct rewrite *rw,
					  const bool xdp)
{
	__u32 at = p->l4 + TCP_CHECK;
	long err;

	if (xdp) {
		csum_replace4(&p->tcp_check, from, rw->addr);
		csum_replace2(&p->tcp_check, from_port, rw->port);
		return packet_store(ctx, at, &p->tcp_check, 2, xdp);
	}
	if (p->l4 == HEAD_BYTES)
		return fix_tcp_check_fast(ctx, p->tcp_check, from, from_port,
					  rw);
	err = bpf_l4_csum_replace(ctx, at, from, rw->addr, BPF_F_PSEUDO_HDR | 4);
	if (from_port != rw->port)
		err |= bpf_l4_csum_replace(ctx, at, from_port, rw->port, 2);
	return err;
}

/* Changes one end of the packet; `p->head` and ports are not yet stored. */
static __always_inline long rewrite_end(void *ctx, struct packet *p,
					const struct rewrite *rw, const bool xdp)
{
	bool source = rw->side == SIDE_SOURCE;
	__be32 addr = source ? p->head.ip.saddr : p->head.ip.daddr;
	__be16 port = source ? p->source : p->dest;
	__u16 check = p->head.ip.check;
	long err = fix_tcp_check(ctx, p, addr, port, rw, xdp);

	csum_replace4(&check, addr, rw->addr);
	p->head.ip.check = check;
	if (source) {
		p->head.ip.saddr = rw->addr;
		p->source = rw->port;
	} else {
		p->head.ip.daddr = rw->addr;
		p->dest = rw->port;
	}
	return err;
}

/* Writes back the headers: all for the next hop, or IP's for the kernel. */
static __always_inline long store_head(void *ctx, struct packet *p, int hop,
				       const bool xdp)
{
	if (hop == HOP_KERNEL)
		return packet_store(ctx, IP_AT, &p->head.ip,
				    sizeof(p->head.ip), xdp);
	return packet_store(ctx, 0, p->head.mac, HEAD_BYTES, xdp);
}

/*
 * Writes back headers and ports. Without IP options, and where the next hop is
 * known, straight into the packet: that spares two helper calls.
 */
static __always_inline long store_all(void *ctx, struct packet *p, int hop,
				      const bool xdp)
{
	__be16 ports[2] = { p->source, p->dest };
	__u16 *at = packet_start(ctx, xdp);
	struct iphdr *ip = (void *)at + IP_AT;
	__u16 *l4 = (void *)(ip + 1);

	if (p->l4 != HEAD_BYTES || hop != HOP_READY ||
	    (void *)(l4 + 2) > packet_end(ctx, xdp))
		return store_head(ctx, p, hop, xdp) |
		       packet_store(ctx, p->l4, ports, sizeof(ports), xdp);
#pragma unroll
	for (int i = 0; i < 6; i++)
		at[i] = p->head.mac[i];
	ip->ttl = p->head.ip.ttl;
	ip->check = p->head.ip.check;
	ip->saddr = p->head.ip.saddr;
	ip->daddr = p->head.ip.daddr;
	l4[0] = ports[0];
	l4[1] = ports[1];
	return 0;
}

/* What happens to a packet that is too long for its way. */
static __always_inline int too_long(const struct packet *p,
				    const struct rewrite *rw, const bool xdp)
{
	if (xdp)
		return punt(COUNTER_punt_xdp, xdp);
	/*
	 * To the owner: the kernel's answer to the client would quote the owner's
	 * address, and unchanged the packet would reach a host without its socket.
	 * From the owner: what the kernel may cut it would send as the owner's.
	 */
	if (rw->side == SIDE_DEST ||
	    (rw->side == SIDE_SOURCE &&
	     !(p->head.ip.frag_off & bpf_htons(IP_DONT_FRAGMENT))))
		return drop(COUNTER_drop_mtu, xdp);
	/* Unchanged: the kernel's answer then reaches the sender, and fits. */
	return punt(COUNTER_punt_mtu, xdp);
}

/* Hands the packet, now complete, to its interface. */
static __always_inline int transmit(const struct nexthop *slot, int hop,
				    const bool xdp)
{
	struct bpf_redir_neigh neighbour = { .nh_family = AF_INET };

	if (hop == HOP_READY)
		return bpf_redirect(slot->ifindex, 0);
	if (xdp || hop != HOP_NEIGHBOUR)
		return pass(xdp);
	count(COUNTER_seen_neighbour_missing);
	neighbour.ipv4_nh = slot->addr;
	return bpf_redirect_neigh(slot->ifindex, &neighbour, sizeof(neighbour),
				  0);
}

/*
 * Sends a TCP packet to the next hop `addr`, rewritten as `rw` says. What XDP
 * cannot finish it leaves untouched to the tc program of the same interface.
 */
static __always_inline int forward(void *ctx, struct packet *p, __be32 addr,
				   const struct rewrite *rw, __u32 reason,
				   const bool xdp)
{
	struct nexthop *slot;
	int hop;

	if (p->head.ip.ttl <= 1)
		return punt(COUNTER_punt_ttl, xdp);
	hop = resolve(ctx, p, addr, &slot, xdp);
	if (xdp && hop != HOP_READY)
		return punt(COUNTER_punt_xdp, xdp);
	if (!slot)
		return punt(COUNTER_punt_no_route, xdp);
	if (hop == HOP_READY && is_too_long(ctx, p, slot, xdp))
		return too_long(p, rw, xdp);
	if (p->l4 > HEAD_BYTES)
		count(COUNTER_seen_ip_options);
	if (rw->side != SIDE_NONE && rewrite_end(ctx, p, rw, xdp))
		return drop(COUNTER_drop_store, xdp);
	if (hop == HOP_KERNEL)
		reason = COUNTER_punt_no_route;
	else
		head_next_hop(&p->head, slot);
	if (store_all(ctx, p, hop, xdp))
		return drop(COUNTER_drop_store, xdp);
	count(reason);
	return transmit(slot, hop, xdp);
}

/*
 * The frontend of a client: rendezvous hashing, so that a change of the list
 * moves only the connections of the frontends it concerns. 0: there is none.
 */
static __always_inline __be32 pick_frontend(const struct service *service,
					    __be32 client, __be16 client_port)
{
	__u32 seed = mix(client ^ mix(client_port));
	__u32 best = 0;
	__be32 chosen = 0;

	if (service->frontend_count == 1)
		return service->frontends[0].word[3];
	for (int i = 0; i < MAX_FRONTENDS; i++) {
		__be32 addr;
		__u32 weight;

		if (i >= service->frontend_count)
			break;
		addr = service->frontends[i].word[3];
		weight = mix(seed ^ addr);
		if (!chosen || weight > best) {
			best = weight;
			chosen = addr;
		}
	}
	return chosen;
}

#endif
