// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Forwards a packet: finds the next hop, rewrites the packet, or leaves it to the kernel of
 * this host.
 *
 * Checksums. In tc, a packet's checksum may be not computed yet (CHECKSUM_PARTIAL, GSO), or
 * the driver may have given its sum (CHECKSUM_COMPLETE). If the program can ask which case it
 * is, it updates the field itself. If it cannot, or if the driver gave the sum,
 * bpf_l4_csum_replace does. All other changes leave the sums unchanged. In XDP every packet
 * is complete.
 */
#ifndef PRISM_FORWARD_H
#define PRISM_FORWARD_H

#include "csum.h"
#include "flow.h"

#define AF_INET 2

/* From linux/skbuff.h. The kernel's type information has the offset of the field. */
#define CHECKSUM_COMPLETE 2
#define CHECKSUM_PARTIAL 3
struct sk_buff {
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

enum hop {
	HOP_READY,		/* interface and addresses are known */
	HOP_CONFIRM,		/* as HOP_READY; the kernel is to check the neighbour */
	HOP_NEIGHBOUR,		/* interface is known, the address needs ARP */
	HOP_KERNEL,		/* no route, or an address of this host */
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
	/* TC_ACT_UNSPEC: other programs of the interface follow. */
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

/* Asks the kernel for the next hop to `addr`, and caches it in `slot`. */
static __noinline int fib_resolve(void *ctx, struct nexthop *slot, __be32 addr,
				  __u32 ifindex)
{
	struct bpf_fib_lookup fib = {
		.family = AF_INET,
		/* Not 0, so that the kernel tells the route's MTU. */
		.tot_len = 1,
		.ipv4_dst = addr,
		.ifindex = ifindex,
	};
	long result = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);

	slot->expires_ns = 0;
	slot->ifindex = fib.ifindex;
	slot->addr = addr;
	slot->gateway = fib.ipv4_dst;
	if (result == BPF_FIB_LKUP_RET_NO_NEIGH)
		return HOP_NEIGHBOUR;
	if (result != BPF_FIB_LKUP_RET_SUCCESS)
		return HOP_KERNEL;
	slot->mtu_bytes = fib.mtu_result;
	__builtin_memcpy((void *)slot->mac, fib.dmac, ETH_ALEN);
	__builtin_memcpy((void *)slot->mac + ETH_ALEN, fib.smac, ETH_ALEN);
	return HOP_READY;
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

static __noinline int configured_hop(struct nexthop *slot, __be32 addr)
{
	struct ip_addr key = mapped(addr);
	struct node *node = bpf_map_lookup_elem(&nodes, &key);

	if (!node || !node->ifindex)
		return 0;
	slot->addr = addr;
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
	if (!configured_hop(slot, addr)) {
		hop = fib_resolve(ctx, slot, addr, packet_ifindex(ctx, xdp));
		if (hop == HOP_READY && is_to_confirm(slot, p->now_ns, xdp))
			hop = HOP_CONFIRM;
	}
	if (hop == HOP_READY || (hop == HOP_CONFIRM && !xdp))
		slot->expires_ns = p->now_ns + nexthop_ttl_ns;
	return hop;
}

/* Whether the packet, or a segment of it, is longer than the path allows. */
static __always_inline bool is_too_long(void *ctx, const struct packet *p,
					const struct nexthop *slot,
					const bool xdp)
{
	__u32 l3_bytes = p->bytes - sizeof(struct ethhdr);

	/* A segment is no longer than the whole packet. */
	if (!slot->mtu_bytes || l3_bytes <= slot->mtu_bytes)
		return false;
	if (!xdp && ((struct __sk_buff *)ctx)->gso_size)
		l3_bytes = p->l4 - sizeof(struct ethhdr) + p->tcp_header_bytes +
			   ((struct __sk_buff *)ctx)->gso_size;
	return l3_bytes > slot->mtu_bytes;
}

static __always_inline void head_next_hop(struct head *head,
					  const struct nexthop *slot)
{
	__builtin_memcpy(head->mac, slot->mac, sizeof(head->mac));
	head->protocol = bpf_htons(ETH_P_IP);
	csum_replace2(&head->ip.check, bpf_htons(0x0100), 0);
	head->ip.ttl--;
}

/* Writes the headers back: all for the next hop, or only IP's for the kernel. */
static __always_inline long store_head(void *ctx, struct packet *p, int hop,
				       const bool xdp)
{
	if (hop == HOP_KERNEL)
		return packet_store(ctx, IP_AT, &p->head.ip,
				    sizeof(p->head.ip), xdp);
	return packet_store(ctx, 0, p->head.mac, HEAD_BYTES, xdp);
}

/* The way in which the field of the TCP checksum follows a change. */
enum check_kind {
	CHECK_WHOLE,		/* it is the checksum */
	CHECK_PARTIAL,		/* it is the sum of the pseudo-header so far */
	CHECK_BY_KERNEL,	/* more than the field must be changed */
};

static __always_inline enum check_kind check_kind(void *ctx, const bool xdp)
{
	struct sk_buff *skb;

	if (xdp)
		return CHECK_WHOLE;
	/* Since Linux 6.2. */
	if (!bpf_ksym_exists(bpf_cast_to_kern_ctx))
		return CHECK_BY_KERNEL;
	skb = bpf_cast_to_kern_ctx(ctx);
	switch (BPF_CORE_READ_BITFIELD(skb, ip_summed)) {
	case CHECKSUM_PARTIAL:
		return CHECK_PARTIAL;
	case CHECKSUM_COMPLETE:
		return CHECK_BY_KERNEL;
	}
	return CHECK_WHOLE;
}

/* The present address and port of the end that is to be changed. */
static __always_inline struct rewrite old_end(const struct packet *p,
					      enum side side)
{
	bool source = side == SIDE_SOURCE;
	struct rewrite end = {
		.side = side,
		.addr = source ? p->head.ip.saddr : p->head.ip.daddr,
		.port = source ? p->source : p->dest,
	};

	return end;
}

/* The field of the TCP checksum, at offset `at`; NULL: there is none. */
static __always_inline __u16 *check_field(struct __sk_buff *skb, __u32 at)
{
	/* Changes nothing, but bounds it for the verifier. */
	__u16 *check = packet_start(skb, false) + (at & (2 * L4_LIMIT - 1));

	return (void *)(check + 1) > packet_end(skb, false) ? NULL : check;
}

/*
 * Has the kernel change the checksum for a new address and port. The helper's change of the
 * field for the address shows what the field is, which saves the call for the port unless
 * both cases have the same result.
 */
static __noinline int check_by_kernel(struct __sk_buff *skb, __u32 at,
				      const struct rewrite *from,
				      const struct rewrite *to)
{
	__u64 change = sum_of_change4(from->addr, to->addr);
	__u16 *check = check_field(skb, at);
	__u16 whole, partial;

	if (!check)
		return -1;
	whole = csum_fold((__u16)~*check + change);
	partial = sum_fold(*check + change);
	if (bpf_l4_csum_replace(skb, at, from->addr, to->addr,
				BPF_F_PSEUDO_HDR | 4))
		return -1;
	if (from->port == to->port)
		return 0;
	check = check_field(skb, at);
	if (!check)
		return -1;
	if (whole == partial || (*check != whole && *check != partial))
		return bpf_l4_csum_replace(skb, at, from->port, to->port, 2);
	if (*check == whole)
		csum_replace2(check, from->port, to->port);
	return 0;
}

/* Changes one end of the packet. */
static __always_inline void write_end(struct iphdr *ip, struct tcphdr *tcp,
				      const struct rewrite *from,
				      const struct rewrite *to,
				      enum check_kind kind)
{
	__u64 addr = sum_of_change4(from->addr, to->addr);
	__u64 port = sum_of_change2(from->port, to->port);

	if (kind == CHECK_WHOLE)
		tcp->check = csum_fold((__u16)~tcp->check + addr + port);
	else if (kind == CHECK_PARTIAL)
		tcp->check = sum_fold(tcp->check + addr);
	ip->check = csum_fold((__u16)~ip->check + addr);
	if (to->side == SIDE_SOURCE) {
		ip->saddr = to->addr;
		tcp->source = to->port;
	} else {
		ip->daddr = to->addr;
		tcp->dest = to->port;
	}
}

static __always_inline void write_next_hop(void *start, struct iphdr *ip,
					   const struct nexthop *slot, int hop)
{
	__u32 *mac = start;

	if (hop == HOP_KERNEL)
		return;
	csum_replace2(&ip->check, bpf_htons(0x0100), 0);
	ip->ttl--;
	if (hop != HOP_READY)
		return;
#pragma unroll
	for (int i = 0; i < 3; i++)
		mac[i] = slot->mac[i];
}

/*
 * Writes all changes of a TCP packet directly into it: each helper call would cost as much as
 * all of this.
 */
static __always_inline long write_packet(void *ctx, const struct packet *p,
					 const struct rewrite *rw,
					 const struct nexthop *slot, int hop,
					 const bool xdp)
{
	struct rewrite from = old_end(p, rw->side);
	enum check_kind kind = CHECK_WHOLE;
	struct tcphdr *tcp;
	struct iphdr *ip;
	void *start;

	if (rw->side != SIDE_NONE)
		kind = check_kind(ctx, xdp);
	if (kind == CHECK_BY_KERNEL &&
	    check_by_kernel(ctx, p->l4 + TCP_CHECK, &from, rw))
		return -1;
	start = packet_start(ctx, xdp);
	ip = start + IP_AT;
	/* Changes nothing, but bounds it for the verifier. */
	tcp = start + (p->l4 & (L4_LIMIT - 1));
	if ((void *)(ip + 1) > packet_end(ctx, xdp) ||
	    (void *)(tcp + 1) > packet_end(ctx, xdp))
		return -1;
	if (rw->side != SIDE_NONE)
		write_end(ip, tcp, &from, rw, kind);
	write_next_hop(start, ip, slot, hop);
	return 0;
}

/* Handles a packet that is too long for its path. */
static __always_inline int too_long(const struct packet *p,
				    const struct rewrite *rw, const bool xdp)
{
	if (xdp)
		return punt(COUNTER_punt_xdp, xdp);
	/*
	 * To the owner: the kernel's answer to the client would quote the owner's
	 * address, and the unchanged packet would reach a host without its socket.
	 * From the owner: the kernel would send fragments with the owner's address.
	 */
	if (rw->side == SIDE_DEST ||
	    (rw->side == SIDE_SOURCE &&
	     !(p->head.ip.frag_off & bpf_htons(IP_DONT_FRAGMENT))))
		return drop(COUNTER_drop_mtu, xdp);
	/* The packet is unchanged, so the kernel's answer is right for the sender. */
	return punt(COUNTER_punt_mtu, xdp);
}

/* Hands the finished packet to its interface. */
static __always_inline int transmit(const struct nexthop *slot, int hop,
				    const bool xdp)
{
	struct bpf_redir_neigh neighbour = { .nh_family = AF_INET };

	if (hop == HOP_READY)
		return bpf_redirect(slot->ifindex, 0);
	if (xdp || hop == HOP_KERNEL)
		return pass(xdp);
	if (hop == HOP_NEIGHBOUR)
		count(COUNTER_seen_neighbour_missing);
	neighbour.ipv4_nh = slot->gateway;
	return bpf_redirect_neigh(slot->ifindex, &neighbour, sizeof(neighbour),
				  0);
}

/*
 * Sends a TCP packet to the next hop `addr`, rewritten by `rw`. XDP leaves packets that it
 * cannot finish untouched to the tc program of the same interface.
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
	if (hop <= HOP_CONFIRM && is_too_long(ctx, p, slot, xdp))
		return too_long(p, rw, xdp);
	if (p->l4 > HEAD_BYTES)
		count(COUNTER_seen_ip_options);
	if (write_packet(ctx, p, rw, slot, hop, xdp))
		return drop(COUNTER_drop_store, xdp);
	count(hop == HOP_KERNEL ? COUNTER_punt_no_route : reason);
	return transmit(slot, hop, xdp);
}

/*
 * The frontend of a client, by rendezvous hashing: a change of the list moves only the
 * connections of the changed frontends. 0: there is none. The function is global, so that it
 * is verified once. Inside its callers the verifier would try every order of the weights.
 */
__noinline __be32 pick_frontend(const struct frontends *frontends, __be32 client,
				__be16 client_port)
{
	__u32 seed = mix(client ^ mix(client_port));
	__u32 best = 0;
	__be32 chosen = 0;

	if (!frontends)
		return 0;
	if (frontends->count == 1)
		return frontends->list[0].word[3];
	for (int i = 0; i < MAX_FRONTENDS; i++) {
		__be32 addr;
		__u32 weight;

		if (i >= frontends->count)
			break;
		addr = frontends->list[i].word[3];
		weight = mix(seed ^ addr);
		if (!chosen || weight > best) {
			best = weight;
			chosen = addr;
		}
	}
	return chosen;
}

#endif
