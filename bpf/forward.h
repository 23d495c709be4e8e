// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Forwards a packet to its next hop: rewrites the packet, or leaves it to the kernel of this
 * host.
 *
 * Checksums. In tc, a packet's checksum may be not computed yet (CHECKSUM_PARTIAL, GSO), or
 * the driver may have given its sum (CHECKSUM_COMPLETE). If the program can ask which case it
 * is, it updates the field itself. If it cannot, or if the driver gave the sum,
 * bpf_l4_csum_replace does. All other changes leave the sums unchanged, but for the hop limit
 * of IPv6 (sum_hop_limit). In XDP every packet is complete.
 */
#ifndef PRISM_FORWARD_H
#define PRISM_FORWARD_H

#include "flow.h"
#include "nexthop.h"

/* From linux/skbuff.h. The kernel's type information has the offset of the field. */
#define CHECKSUM_COMPLETE 2
#define CHECKSUM_PARTIAL 3
struct sk_buff {
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

enum side {
	SIDE_NONE,
	SIDE_SOURCE,
	SIDE_DEST,
};

/* The new address and port of one end of a packet. */
struct rewrite {
	const struct ip_addr *addr;
	enum side side;
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

/*
 * Leaves a packet that cannot be sent on to the kernel of the switch, which knows a way or tells
 * the sender. In host mode that kernel would reset the client.
 */
static __always_inline int leave(__u32 reason, const bool xdp)
{
	return host_mode ? drop(COUNTER_drop_no_way, xdp) : punt(reason, xdp);
}

/* The IP header of each segment. The header for the length of a huge packet is in none. */
static __always_inline __u32 l3_header_bytes(const struct packet *p)
{
	return p->is_huge && p->is_v6 ? sizeof(struct ipv6hdr) : p->l4 - IP_AT;
}

/* Whether the packet, or a segment of it, is longer than the path allows; 0: not known. */
static __always_inline bool is_too_long(void *ctx, const struct packet *p,
					__u32 mtu_bytes, const bool xdp)
{
	__u32 l3_bytes = p->bytes - sizeof(struct ethhdr);

	/* A segment is no longer than the whole packet. */
	if (!mtu_bytes || l3_bytes <= mtu_bytes)
		return false;
	if (!xdp && ((struct __sk_buff *)ctx)->gso_size)
		l3_bytes = l3_header_bytes(p) + p->tcp_header_bytes +
			   ((struct __sk_buff *)ctx)->gso_size;
	return l3_bytes > mtu_bytes;
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

/* The present address of the end that is to be changed. */
static __always_inline const struct ip_addr *old_addr(const struct packet *p,
						      enum side side)
{
	return side == SIDE_SOURCE ? &p->source : &p->dest;
}

static __always_inline __be16 old_port(const struct packet *p, enum side side)
{
	return side == SIDE_SOURCE ? p->source_port : p->dest_port;
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
 *
 * With the change of the pseudo-header the helper also changes the sum of the driver. In IPv4
 * that is right, because the checksum of the header makes up for the address. In IPv6 the TCP
 * checksum does, so the sum is set back.
 */
static __noinline int check_by_kernel(struct __sk_buff *skb,
				      const struct packet *p,
				      const struct rewrite *to)
{
	__u64 change = sum_of_change(old_addr(p, to->side), to->addr, p->is_v6);
	__be16 from_port = old_port(p, to->side);
	__u32 at = p->l4 + TCP_CHECK;
	__u16 *check = check_field(skb, at);
	__u16 whole, partial;

	if (!check)
		return -1;
	whole = csum_fold((__u16)~*check + change);
	partial = sum_fold(*check + change);
	if (bpf_l4_csum_replace(skb, at, 0, sum_fold4(change), BPF_F_PSEUDO_HDR))
		return -1;
	if (p->is_v6)
		bpf_csum_update(skb, sum_fold4(change));
	if (from_port == to->port)
		return 0;
	check = check_field(skb, at);
	if (!check)
		return -1;
	if (whole == partial || (*check != whole && *check != partial))
		return bpf_l4_csum_replace(skb, at, from_port, to->port, 2);
	if (*check == whole)
		csum_replace2(check, from_port, to->port);
	return 0;
}

/* Changes one end of a TCP header. `change` is that of the pseudo-header. */
static __always_inline void write_tcp(struct tcphdr *tcp, const struct packet *p,
				      const struct rewrite *rw, __u64 change,
				      enum check_kind kind)
{
	__u64 port = sum_of_change2(old_port(p, rw->side), rw->port);

	if (kind == CHECK_WHOLE)
		tcp->check = csum_fold((__u16)~tcp->check + change + port);
	else if (kind == CHECK_PARTIAL)
		tcp->check = sum_fold(tcp->check + change);
	if (rw->side == SIDE_SOURCE)
		tcp->source = rw->port;
	else
		tcp->dest = rw->port;
}

/* Changes an IPv4 header: one address, and the TTL of a packet that goes on. */
static __always_inline void write_ip4(struct iphdr *ip, const struct rewrite *rw,
				      __u64 change, int hop)
{
	__u64 sum = (__u16)~ip->check;

	if (rw->side == SIDE_SOURCE)
		ip->saddr = rw->addr->word[3];
	else if (rw->side == SIDE_DEST)
		ip->daddr = rw->addr->word[3];
	if (rw->side != SIDE_NONE)
		sum += change;
	if (hop != HOP_KERNEL) {
		sum += sum_of_change2(bpf_htons(0x0100), 0);
		ip->ttl--;
	}
	ip->check = csum_fold(sum);
}

/* The same of an IPv6 header, which has no checksum. */
static __always_inline void write_ip6(struct ipv6hdr *ip,
				      const struct rewrite *rw, int hop)
{
	if (rw->side == SIDE_SOURCE)
		copy_addr((struct ip_addr *)&ip->saddr, rw->addr);
	else if (rw->side == SIDE_DEST)
		copy_addr((struct ip_addr *)&ip->daddr, rw->addr);
	if (hop != HOP_KERNEL)
		ip->hop_limit--;
}

/* Changes the frame's and the IP header's part. Nonzero: the packet is too short. */
static __always_inline long write_l3(void *start, void *end,
				     const struct packet *p,
				     const struct rewrite *rw, __u64 change,
				     const struct nexthop *slot, int hop)
{
	struct ipv6hdr *ip6 = start + IP_AT;
	struct iphdr *ip4 = start + IP_AT;
	__u32 *mac = start;

	if ((void *)(ip4 + 1) > end)
		return -1;
	if (!p->is_v6) {
		write_ip4(ip4, rw, change, hop);
	} else {
		if ((void *)(ip6 + 1) > end)
			return -1;
		write_ip6(ip6, rw, hop);
	}
	if (hop != HOP_READY)
		return 0;
#pragma unroll
	for (int i = 0; i < 3; i++)
		mac[i] = slot->mac[i];
	return 0;
}

/*
 * Takes the next hop limit into the driver's sum of an IPv6 packet. In IPv4 the checksum of
 * the header makes up for the change.
 */
static __always_inline void sum_hop_limit(void *ctx, const struct packet *p,
					  int hop)
{
	if (p->is_v6 && hop != HOP_KERNEL)
		bpf_csum_update(ctx, (__u16)~bpf_htons(1));
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
	enum check_kind kind = CHECK_WHOLE;
	void *start, *end;
	struct tcphdr *tcp;
	__u64 change = 0;

	if (rw->side != SIDE_NONE || p->is_v6)
		kind = check_kind(ctx, xdp);
	if (kind == CHECK_BY_KERNEL) {
		if (rw->side != SIDE_NONE && check_by_kernel(ctx, p, rw))
			return -1;
		sum_hop_limit(ctx, p, hop);
	}
	start = packet_start(ctx, xdp);
	end = packet_end(ctx, xdp);
	if (rw->side != SIDE_NONE) {
		/* Changes nothing, but bounds it for the verifier. */
		tcp = start + (p->l4 & (L4_LIMIT - 1));
		if ((void *)(tcp + 1) > end)
			return -1;
		change = sum_of_change(old_addr(p, rw->side), rw->addr,
				       p->is_v6);
		write_tcp(tcp, p, rw, change, kind);
	}
	return write_l3(start, end, p, rw, change, slot, hop);
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
	    (rw->side == SIDE_SOURCE && p->may_be_cut))
		return drop(COUNTER_drop_mtu, xdp);
	/* The packet is unchanged, so the kernel's answer is right for the sender. */
	return leave(COUNTER_punt_mtu, xdp);
}

/* Hands the finished packet to its interface. */
static __always_inline int transmit(const struct nexthop *slot, int hop,
				    const bool xdp)
{
	struct bpf_redir_neigh neighbour = {};

	if (hop == HOP_READY)
		return bpf_redirect(slot->ifindex, 0);
	if (xdp || hop == HOP_KERNEL)
		return pass(xdp);
	if (hop == HOP_NEIGHBOUR && !host_mode)
		count(COUNTER_seen_neighbour_missing);
	__builtin_memcpy(neighbour.ipv6_nh, &slot->gateway,
			 sizeof(slot->gateway));
	neighbour.nh_family = AF_INET6;
	if (is_mapped(&slot->gateway)) {
		neighbour.nh_family = AF_INET;
		neighbour.ipv4_nh = slot->gateway.word[3];
	}
	return bpf_redirect_neigh(slot->ifindex, &neighbour, sizeof(neighbour),
				  0);
}

/*
 * Sends a TCP packet to the next hop `addr`, rewritten by `rw`. XDP leaves packets that it
 * cannot finish untouched to the tc program of the same interface.
 */
static __always_inline int forward(void *ctx, const struct packet *p,
				   const struct ip_addr *addr,
				   const struct rewrite *rw, __u32 reason,
				   const bool xdp)
{
	struct nexthop *slot;
	int hop;

	if (p->hop_limit <= 1)
		return leave(COUNTER_punt_ttl, xdp);
	hop = resolve(ctx, p, addr, &slot, xdp);
	if (xdp && hop != HOP_READY)
		return punt(COUNTER_punt_xdp, xdp);
	if (!slot || (host_mode && hop == HOP_KERNEL))
		return leave(COUNTER_punt_no_route, xdp);
	if (hop <= HOP_CONFIRM && is_too_long(ctx, p, slot->mtu_bytes, xdp))
		return too_long(p, rw, xdp);
	if (p->has_options)
		count(COUNTER_seen_ip_options);
	if (write_packet(ctx, p, rw, slot, hop, xdp))
		return drop(COUNTER_drop_store, xdp);
	count(hop == HOP_KERNEL ? COUNTER_punt_no_route : reason);
	return transmit(slot, hop, xdp);
}

/*
 * The place of a client's frontend in the list, by rendezvous hashing: a change of the list
 * moves only the connections of the changed frontends. Negative: the list is empty. `client`
 * is the word of its address. The function is global, so that it is verified once. Inside its
 * callers the verifier would try every order of the weights.
 */
__noinline int pick_place(const struct frontends *frontends, __u32 client,
			  __be16 client_port)
{
	__u32 seed = mix(client ^ mix(client_port));
	__u32 best = 0;
	int chosen = -1;

	if (!frontends)
		return -1;
	if (frontends->count == 1)
		return 0;
	for (int i = 0; i < MAX_FRONTENDS; i++) {
		__u32 weight;

		if (i >= frontends->count)
			break;
		weight = mix(seed ^ addr_word(&frontends->list[i]));
		if (chosen < 0 || weight > best) {
			best = weight;
			chosen = i;
		}
	}
	return chosen;
}

/* Whether `addr` is in the list. */
__noinline int has_frontend(const struct frontends *frontends,
			    const struct ip_addr *addr)
{
	if (!frontends || !addr)
		return 0;
	for (int i = 0; i < MAX_FRONTENDS; i++) {
		if (i >= frontends->count)
			break;
		if (same_addr(&frontends->list[i], addr))
			return 1;
	}
	return 0;
}

/* The frontend of a client; NULL: there is none. */
static __always_inline const struct ip_addr *
pick_frontend(const struct frontends *frontends, const struct ip_addr *client,
	      __be16 client_port)
{
	int place = pick_place(frontends, addr_word(client), client_port);

	/* The mask changes nothing, but bounds the place for the verifier. */
	return place < 0 ? NULL : &frontends->list[place & (MAX_FRONTENDS - 1)];
}

#endif
