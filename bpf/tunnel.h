// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Host mode across routers: a packet goes to another node's host inside a packet of the same
 * family (IPIP of RFC 2003, IPv6 in IPv6 of RFC 2473). The program makes and removes the outer
 * header, so no host needs a tunnel interface. The inner packet stays as it is.
 */
#ifndef PRISM_TUNNEL_H
#define PRISM_TUNNEL_H

#include "steer.h"

#define TUNNEL_HOP_LIMIT 64
/* The segments of a huge packet keep their lengths, and no checksum changes. */
#define TUNNEL_KEEPS (BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET)

/* Copies a constant that the loader has set. */
static __always_inline void copy_set_addr(struct ip_addr *to,
					  const volatile struct ip_addr *from)
{
	const volatile addr_half *half = (const volatile addr_half *)from;

	((addr_half *)to)[0] = half[0];
	((addr_half *)to)[1] = half[1];
}

static __always_inline __u32 outer_bytes(const struct packet *p)
{
	return p->is_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
}

/*
 * Makes room in front of the IP header. A packet that the kernel has merged from packets of a
 * tunnel is marked as one until it leaves this host, and needs no other mark.
 */
static __always_inline long make_room(struct __sk_buff *skb,
				      const struct packet *p)
{
	__u64 kind = p->is_v6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 :
				BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	__s32 bytes = outer_bytes(p);

	if (!bpf_skb_adjust_room(skb, bytes, BPF_ADJ_ROOM_MAC,
				 TUNNEL_KEEPS | kind))
		return 0;
	return bpf_skb_adjust_room(skb, bytes, BPF_ADJ_ROOM_MAC, TUNNEL_KEEPS);
}

/*
 * The address of the arbiter in a family, namely the control address. Those that follow it are
 * for copies. False: it has none.
 */
static __always_inline bool arbiter_addr(bool is_v6, struct ip_addr *addr)
{
	for (int i = 0; i < CONTROL_ADDRS; i++) {
		copy_set_addr(addr, &control_addrs[i]);
		if (is_mapped(addr) != is_v6)
			return !is_zero_addr(addr);
	}
	return false;
}

/* The control address if `as_arbiter`, which has one of the packet's family, or this host's. */
static __always_inline void outer_source(struct ip_addr *from, const bool is_v6,
					 bool as_arbiter)
{
	if (!as_arbiter || !arbiter_addr(is_v6, from))
		copy_set_addr(from, &own_addrs[is_v6]);
}

/*
 * Writes the outer header. Its marks of congestion stay unused (RFC 6040, compatibility mode).
 * No router may cut it: the receiver's program sees packets before the kernel joins fragments.
 */
static __always_inline long write_outer(struct __sk_buff *skb,
					const struct packet *p,
					const struct ip_addr *to,
					bool as_arbiter)
{
	__u32 bytes = p->l4 - IP_AT + p->l4_bytes;

	/* The kernel writes the length of each segment of a huge packet. */
	if (bytes > 0xffff - sizeof(struct iphdr))
		bytes = 0;
	if (p->is_v6) {
		struct ipv6hdr outer ALIGNED = {
			.version = 6,
			.payload_len = bpf_htons(bytes),
			.nexthdr = IPPROTO_IPV6,
			.hop_limit = TUNNEL_HOP_LIMIT,
		};

		outer_source((struct ip_addr *)&outer.saddr, true, as_arbiter);
		copy_addr((struct ip_addr *)&outer.daddr, to);
		return bpf_skb_store_bytes(skb, IP_AT, &outer, sizeof(outer),
					   BPF_F_RECOMPUTE_CSUM);
	}
	struct ip_addr from ALIGNED;

	outer_source(&from, false, as_arbiter);
	struct iphdr outer = {
		.version = 4,
		.ihl = sizeof(outer) / 4,
		.tot_len = bytes ? bpf_htons(bytes + sizeof(outer)) : 0,
		.frag_off = bpf_htons(IP_DONT_FRAGMENT),
		.ttl = TUNNEL_HOP_LIMIT,
		.protocol = IPPROTO_IPIP,
		.saddr = from.word[3],
		.daddr = to->word[3],
	};

	outer.check = csum_fold(bpf_csum_diff(NULL, 0, (__be32 *)&outer,
					      sizeof(outer), 0));
	return bpf_skb_store_bytes(skb, IP_AT, &outer, sizeof(outer),
				   BPF_F_RECOMPUTE_CSUM);
}

/*
 * Sends a packet to the node at `to` in a tunnel. The kernel knows the way there. `as_arbiter`:
 * no flow is known for it (host_arrived).
 */
static __noinline int send_in_tunnel(struct __sk_buff *skb,
				     const struct packet *p,
				     const struct ip_addr *to, bool as_arbiter)
{
	struct nexthop *slot;

	if (is_mapped(to) == p->is_v6 ||
	    resolve(skb, p, to, &slot, false) == HOP_KERNEL || !slot)
		return drop(COUNTER_drop_no_way, false);
	if (is_too_long(skb, p, tunnel_mtu_bytes - outer_bytes(p), false))
		return drop(COUNTER_drop_mtu, false);
	if (make_room(skb, p) || write_outer(skb, p, to, as_arbiter))
		return drop(COUNTER_drop_store, false);
	count(COUNTER_forward_in_tunnel);
	return bpf_redirect_neigh(slot->ifindex, NULL, 0, 0);
}

/* Sends a packet to the arbiter in a tunnel. */
static __always_inline int send_to_arbiter(struct __sk_buff *skb,
					   const struct packet *p)
{
	struct ip_addr arbiter ALIGNED;

	if (!arbiter_addr(p->is_v6, &arbiter))
		return drop(COUNTER_drop_no_way, false);
	return send_in_tunnel(skb, p, &arbiter, false);
}

static __always_inline bool is_arbiter(const struct packet *p,
				       const struct ip_addr *addr)
{
	struct ip_addr arbiter ALIGNED;

	return arbiter_addr(p->is_v6, &arbiter) && same_addr(addr, &arbiter);
}

/* Whether the address is that of a host that packets come from in tunnels. */
static __always_inline bool sends_in_tunnels(const struct ip_addr *addr)
{
	struct node *node = bpf_map_lookup_elem(&nodes, addr);

	return node &&
	       node->roles & (ROLE_FRONTEND | ROLE_BACKEND | ROLE_FORMER);
}

/* Whether the packet is one that another node's host has sent to this one, about a service. */
static __always_inline bool is_of_tunnel(struct __sk_buff *skb,
					 const struct packet *p)
{
	__u8 protocol = p->is_v6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	struct service_key key ALIGNED = {};
	__u32 at = p->l4;
	__be32 dest;

	if (!tunnel_mtu_bytes || p->protocol != protocol || p->has_options)
		return false;
	if (!sends_in_tunnels(&p->source) && !is_arbiter(p, &p->source))
		return false;
	if (!is_here(&p->dest) && !is_arbiter(p, &p->dest))
		return false;
	if (p->is_v6) {
		at += offsetof(struct ipv6hdr, daddr);
		if (bpf_skb_load_bytes(skb, at, &key.addr, sizeof(key.addr)))
			return false;
	} else {
		at += offsetof(struct iphdr, daddr);
		if (bpf_skb_load_bytes(skb, at, &dest, sizeof(dest)))
			return false;
		map_addr(&key.addr, dest);
	}
	return bpf_map_lookup_elem(&services, &key);
}

/* Takes a packet out of its tunnel, and reads it. */
static __noinline int leave_tunnel(struct __sk_buff *skb, struct packet *p)
{
	__s32 bytes = outer_bytes(p);

	if (bpf_skb_adjust_room(skb, -bytes, BPF_ADJ_ROOM_MAC, TUNNEL_KEEPS))
		return PARSED_OTHER;
	return parse(skb, p, false);
}

#endif
