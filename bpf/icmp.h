// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * ICMP errors about flows. An error quotes a packet of a flow, which leads to the flow's
 * owner. The quote is rewritten to the packet that the owner sent. This is the slow path: it
 * loads and stores by offset, in XDP as in tc.
 *
 * A quoted TCP checksum stays as it was: hosts match errors by addresses, ports and sequence
 * number (RFC 5927).
 */
#ifndef PRISM_ICMP_H
#define PRISM_ICMP_H

#include "steer.h"

/* Error types of RFC 792. */
#define ICMP_DEST_UNREACH 3
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12

/* <linux/icmp.h> would need the C library of another architecture. */
struct icmphdr {
	__u8 type;
	__u8 code;
	__u16 checksum;
	__be32 rest;
};

/* The first eight bytes behind the quoted IP header (RFC 792). */
struct quoted_tcp {
	__be16 source;
	__be16 dest;
	__be32 seq;
};

struct icmp_error {
	struct icmphdr icmp;
	struct iphdr ip;
	struct quoted_tcp tcp;
	__u32 ip_at;
	__u32 tcp_at;
};

/* Loads the packet. True if it is an ICMP error that quotes TCP. */
static __always_inline bool icmp_load(void *ctx, const struct packet *p,
				      struct icmp_error *e, const bool xdp)
{
	if (packet_load(ctx, p->l4, &e->icmp, sizeof(e->icmp), xdp))
		return false;
	if (e->icmp.type != ICMP_DEST_UNREACH &&
	    e->icmp.type != ICMP_TIME_EXCEEDED &&
	    e->icmp.type != ICMP_PARAMETERPROB)
		return false;
	e->ip_at = p->l4 + sizeof(e->icmp);
	if (packet_load(ctx, e->ip_at, &e->ip, sizeof(e->ip), xdp))
		return false;
	if (e->ip.version != 4 || e->ip.ihl < 5 ||
	    e->ip.protocol != IPPROTO_TCP ||
	    (e->ip.frag_off & bpf_htons(IP_FRAGMENT_OFFSET)))
		return false;
	e->tcp_at = e->ip_at + e->ip.ihl * 4;
	return !packet_load(ctx, e->tcp_at, &e->tcp, sizeof(e->tcp), xdp);
}

/* Rewrites the error and its quote to be about the owner's own packet. */
static __always_inline long icmp_rewrite(void *ctx, struct packet *p,
					 struct icmp_error *e,
					 const struct route *r, const bool xdp)
{
	__u16 check = p->head.ip.check;

	csum_replace4(&check, p->head.ip.daddr, r->owner);
	p->head.ip.check = check;
	p->head.ip.daddr = r->owner;

	check = e->ip.check;
	csum_replace4(&check, e->ip.saddr, r->owner);
	/* If the quoted header's checksum is right, it makes up for the address:
	 * then only the port changes the ICMP checksum. */
	csum_replace2(&e->icmp.checksum, e->ip.check, check);
	csum_replace4(&e->icmp.checksum, e->ip.saddr, r->owner);
	csum_replace2(&e->icmp.checksum, e->tcp.source, r->owner_port);
	e->ip.check = check;
	e->ip.saddr = r->owner;
	e->tcp.source = r->owner_port;
	return packet_store(ctx, p->l4, &e->icmp, sizeof(e->icmp), xdp) |
	       packet_store(ctx, e->ip_at, &e->ip, sizeof(e->ip), xdp) |
	       packet_store(ctx, e->tcp_at, &e->tcp.source, 2, xdp);
}

static __always_inline int icmp_forward(void *ctx, struct packet *p,
					struct icmp_error *e,
					const struct route *r, const bool xdp)
{
	bool rewritten = r->owner != e->ip.saddr || r->owner_port != e->tcp.source;
	struct nexthop *slot;
	int hop;

	if (p->head.ip.ttl <= 1)
		return punt(COUNTER_punt_ttl, xdp);
	hop = resolve(ctx, p, r->via, &slot, xdp);
	if (xdp && hop != HOP_READY)
		return punt(COUNTER_punt_xdp, xdp);
	if (!slot)
		return punt(COUNTER_punt_no_route, xdp);
	if (rewritten && icmp_rewrite(ctx, p, e, r, xdp))
		return drop(COUNTER_drop_store, xdp);
	if (hop != HOP_KERNEL)
		head_next_hop(&p->head, slot);
	if (store_head(ctx, p, hop, xdp))
		return drop(COUNTER_drop_store, xdp);
	count(hop == HOP_KERNEL ? COUNTER_punt_no_route : COUNTER_forward_icmp);
	return transmit(slot, hop, xdp);
}

/* Handles an error that quotes a packet from a service to a client. */
static __always_inline int icmp_to_service(void *ctx, struct packet *p,
					   struct icmp_error *e,
					   const struct service *service,
					   const bool xdp)
{
	struct flow_key key = flow_key(e->ip.daddr, e->tcp.dest, e->ip.saddr,
				       e->tcp.source);
	struct flow *f = flow_find(&key);
	struct route r = { .state = FLOW_ABSENT };

	if (f)
		flow_route(f, &r);
	if (r.state == FLOW_BLOCKED)
		return drop(COUNTER_drop_blocked, xdp);
	if (r.state == FLOW_ABSENT) {
		r.owner = e->ip.saddr;
		r.owner_port = e->tcp.source;
		r.via = pick_frontend(&service->now, e->ip.daddr, e->tcp.dest);
		if (!r.via)
			return punt(COUNTER_punt_no_frontend, xdp);
	}
	return icmp_forward(ctx, p, e, &r, xdp);
}

static __always_inline int steer_icmp(void *ctx, struct packet *p,
				      const bool xdp)
{
	struct icmp_error e;
	struct service *service;

	if (!icmp_load(ctx, p, &e, xdp))
		return pass(xdp);
	service = p->head.ip.daddr == e.ip.saddr ?
			  service_find(e.ip.saddr, e.tcp.source) :
			  NULL;
	if (service)
		return icmp_to_service(ctx, p, &e, service, xdp);
	/*
	 * TCP from outside reaches a backend by flows only, so its own error about such
	 * a packet is about a present or former flow.
	 */
	if (is_backend_to_outside(p))
		return drop(COUNTER_drop_icmp_backend, xdp);
	return pass(xdp);
}

#endif
