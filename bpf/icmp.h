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

#include "socket.h"
#include "tunnel.h"

/* Error types of RFC 792. */
#define ICMP_DEST_UNREACH 3
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12
/* Error types of RFC 4443: unreachable, too big, time exceeded, parameter problem. */
#define ICMP6_FIRST_ERROR 1
#define ICMP6_LAST_ERROR 4

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
	/* Of the quoted packet, which a service has sent to a client. */
	struct ip_addr service;
	struct ip_addr client;
	struct quoted_tcp tcp;
	__u16 ip_check;		/* of IPv4 */
	__u16 checksum;		/* of ICMP */
	__u32 ip_at;
	__u32 tcp_at;
} ALIGNED;

/* Loads the quoted IPv4 header. False: it is not one of TCP. */
static __always_inline bool quote_load4(void *ctx, struct icmp_error *e,
					const bool xdp)
{
	struct iphdr ip;

	if (packet_load(ctx, e->ip_at, &ip, sizeof(ip), xdp) ||
	    ip.version != 4 || ip.ihl < 5 || ip.protocol != IPPROTO_TCP ||
	    (ip.frag_off & bpf_htons(IP_FRAGMENT_OFFSET)))
		return false;
	map_addr(&e->service, ip.saddr);
	map_addr(&e->client, ip.daddr);
	e->ip_check = ip.check;
	e->tcp_at = e->ip_at + ip.ihl * 4;
	return true;
}

/* The same for IPv6. A service's own packets have no extension headers. */
static __always_inline bool quote_load6(void *ctx, struct icmp_error *e,
					const bool xdp)
{
	struct ipv6hdr ip ALIGNED;

	if (packet_load(ctx, e->ip_at, &ip, sizeof(ip), xdp) ||
	    ip.version != 6 || ip.nexthdr != IPPROTO_TCP)
		return false;
	copy_addr(&e->service, (struct ip_addr *)&ip.saddr);
	copy_addr(&e->client, (struct ip_addr *)&ip.daddr);
	e->tcp_at = e->ip_at + sizeof(ip);
	return !is_mapped(&e->service) && !is_mapped(&e->client);
}

static __always_inline bool is_error(const struct packet *p, __u8 type)
{
	if (p->is_v6)
		return type >= ICMP6_FIRST_ERROR && type <= ICMP6_LAST_ERROR;
	return type == ICMP_DEST_UNREACH || type == ICMP_TIME_EXCEEDED ||
	       type == ICMP_PARAMETERPROB;
}

/* Loads the packet. True if it is an ICMP error that quotes TCP. */
static __always_inline bool icmp_load(void *ctx, const struct packet *p,
				      struct icmp_error *e, const bool xdp)
{
	struct icmphdr icmp;

	if (packet_load(ctx, p->l4, &icmp, sizeof(icmp), xdp) ||
	    !is_error(p, icmp.type))
		return false;
	e->checksum = icmp.checksum;
	e->ip_at = p->l4 + sizeof(icmp);
	if (!(p->is_v6 ? quote_load6(ctx, e, xdp) : quote_load4(ctx, e, xdp)))
		return false;
	return !packet_load(ctx, e->tcp_at, &e->tcp, sizeof(e->tcp), xdp);
}

/* Rewrites the quoted IPv4 header. Returns the change of the ICMP checksum. */
static __always_inline __u64 quote_write4(void *ctx, const struct icmp_error *e,
					  const struct route *r, __u64 change,
					  const bool xdp, long *err)
{
	__be32 addr = r->owner.word[3];
	__u16 check = csum_fold((__u16)~e->ip_check + change);

	*err |= packet_store(ctx, e->ip_at + offsetof(struct iphdr, saddr),
			     &addr, sizeof(addr), xdp);
	*err |= packet_store(ctx, e->ip_at + offsetof(struct iphdr, check),
			     &check, sizeof(check), xdp);
	/* If the quoted header's checksum is right, it makes up for the address. */
	return change + sum_of_change2(e->ip_check, check);
}

/* The same for IPv6. The pseudo-header of ICMP has the owner's address too. */
static __always_inline __u64 quote_write6(void *ctx, const struct icmp_error *e,
					  struct route *r, __u64 change,
					  const bool xdp, long *err)
{
	*err |= packet_store(ctx, e->ip_at + offsetof(struct ipv6hdr, saddr),
			     &r->owner, sizeof(r->owner), xdp);
	return 2 * change;
}

/* Rewrites the quote and the checksum to be about the owner's own packet. */
static __always_inline long quote_rewrite(void *ctx, const struct packet *p,
					  const struct icmp_error *e,
					  struct route *r, const bool xdp)
{
	__u64 change = sum_of_change(&e->service, &r->owner, p->is_v6);
	__be16 port = r->owner_port;
	__u16 checksum;
	long err = 0;

	change = p->is_v6 ? quote_write6(ctx, e, r, change, xdp, &err) :
			    quote_write4(ctx, e, r, change, xdp, &err);
	change += sum_of_change2(e->tcp.source, port);
	checksum = csum_fold((__u16)~e->checksum + change);
	err |= packet_store(ctx, e->tcp_at, &port, sizeof(port), xdp);
	return err | packet_store(ctx, p->l4 + offsetof(struct icmphdr, checksum),
				  &checksum, sizeof(checksum), xdp);
}

static __always_inline int icmp_forward(void *ctx, const struct packet *p,
					const struct icmp_error *e,
					struct route *r, const bool xdp)
{
	struct rewrite rw = { .addr = &r->owner, .side = SIDE_DEST };
	struct nexthop *slot;
	__u64 change;
	int hop;

	if (p->hop_limit <= 1)
		return punt(COUNTER_punt_ttl, xdp);
	hop = resolve(ctx, p, &r->via, &slot, xdp);
	if (xdp && hop != HOP_READY)
		return punt(COUNTER_punt_xdp, xdp);
	if (!slot)
		return punt(COUNTER_punt_no_route, xdp);
	if (r->owner_port == e->tcp.source && same_addr(&r->owner, &e->service))
		rw.side = SIDE_NONE;
	else if (quote_rewrite(ctx, p, e, r, xdp))
		return drop(COUNTER_drop_store, xdp);
	if (!xdp)
		sum_hop_limit(ctx, p, hop);
	change = sum_of_change(&p->dest, &r->owner, p->is_v6);
	if (write_l3(packet_start(ctx, xdp), packet_end(ctx, xdp), p, &rw,
		     change, slot, hop))
		return drop(COUNTER_drop_store, xdp);
	count(hop == HOP_KERNEL ? COUNTER_punt_no_route : COUNTER_forward_icmp);
	return transmit(slot, hop, xdp);
}

/* Handles an error that quotes a packet from a service to a client. */
static __always_inline int icmp_to_service(void *ctx, const struct packet *p,
					   const struct icmp_error *e,
					   const struct service *service,
					   const bool xdp)
{
	struct route r = { .state = FLOW_ABSENT };
	struct flow_key key ALIGNED;
	const struct ip_addr *frontend;
	struct flow *f;

	copy_addr(&key.client, &e->client);
	copy_addr(&key.vip, &e->service);
	key.client_port = e->tcp.dest;
	key.vip_port = e->tcp.source;
	/* A copy of the flow may be outdated, and a live socket is not. */
	if (host_mode && is_standby_now()) {
		if (has_live_socket(ctx, &key))
			return pass(xdp);
		if (accepts_clients && tunnel_mtu_bytes)
			return send_to_arbiter(ctx, p);
	}
	f = flow_find(&key);
	if (f)
		flow_route(f, &r);
	if (r.state == FLOW_BLOCKED)
		return drop(COUNTER_drop_blocked, xdp);
	if (host_mode && (r.state == FLOW_ABSENT || is_here(&r.via)))
		return pass(xdp);
	if (r.state == FLOW_ABSENT) {
		copy_addr(&r.owner, &e->service);
		r.owner_port = e->tcp.source;
		frontend = pick_frontend(&service->now, &e->client, e->tcp.dest);
		if (!frontend)
			return punt(COUNTER_punt_no_frontend, xdp);
		copy_addr(&r.via, frontend);
	}
	if (host_mode && tunnel_mtu_bytes)
		return send_in_tunnel(ctx, p, &r.via, false);
	return icmp_forward(ctx, p, e, &r, xdp);
}

static __always_inline int steer_icmp(void *ctx, const struct packet *p,
				      const bool xdp)
{
	struct icmp_error e;
	struct service *service;

	if (!icmp_load(ctx, p, &e, xdp))
		return pass(xdp);
	service = same_addr(&p->dest, &e.service) ?
			  service_find(&e.service, e.tcp.source) :
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
