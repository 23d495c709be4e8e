// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Host mode (docs/design/host-mode.md): the program at the ingress of the nodes' own interfaces.
 * The packets of a moved flow go on to its owner, unchanged. All others go up the local stack, if
 * a socket of this host may answer them: a stack without the socket would reset the client.
 * Answers do not pass here.
 */
#ifndef PRISM_HOST_H
#define PRISM_HOST_H

#include "icmp.h"

/* Handles a packet whose owner is this host. */
static __always_inline int host_owned(void *ctx, const struct packet *p)
{
	if (find_socket(ctx, p, false) < SOCKET_MUTE)
		return drop(COUNTER_drop_no_socket, false);
	return punt(COUNTER_punt_here, false);
}

/*
 * Handles a packet at a frontend that is not the arbiter, unless it is for a live socket. Several
 * frontends may accept clients at once, and the network may send a connection's packets to any of
 * them. The flow may be this host's own copy, so it decides nothing but that a SYN may be of a
 * live connection. A mute socket would swallow what its flow's owner waits for.
 *
 * The arbiter gets a packet of a live socket at times, and sends it back. Otherwise it would take
 * the flow for idle.
 */
static __always_inline int host_aside(void *ctx, const struct packet *p,
				      const struct flow *f, int socket)
{
	if (socket < SOCKET_MUTE && is_syn(p) &&
	    (!f || f->state == FLOW_ABSENT))
		return punt(COUNTER_punt_here, false);
	return send_to_arbiter(ctx, p);
}

/*
 * Handles a packet of an unknown flow, other than a SYN, while several frontends accept: another
 * one may have accepted the connection, and not claimed it yet. Then the client gets no answer.
 * The packet may acknowledge a SYN cookie, which its frontend alone can tell; `from` is the one
 * that has sent it here. A cookie counts for minutes, and does not tell whether the connection has
 * been accepted and moved. So it counts only if a settled arbiter knows no flow.
 */
static __always_inline int host_unclaimed(void *ctx, const struct packet *p,
					  const struct term *t, int socket,
					  const struct ip_addr *from)
{
	if (is_undecided(t))
		return drop(COUNTER_drop_young, false);
	if (socket == SOCKET_COOKIE)
		return punt(COUNTER_punt_here, false);
	if (from && is_ack(p))
		return send_in_tunnel(ctx, p, from, true);
	return drop(COUNTER_drop_no_socket, false);
}

/*
 * Handles a packet of a flow without an owner. A new connection is accepted by the frontend that
 * its packets reach. In a young term another host may yet announce the flow, and a handshake that
 * a forged SYN has begun would reset its client.
 */
static __always_inline int host_unowned(void *ctx, const struct packet *p,
					const struct service *service,
					const struct term *t,
					const struct ip_addr *from)
{
	int socket = find_socket(ctx, p, false);

	if (socket >= SOCKET_MUTE)
		return punt(COUNTER_punt_here, false);
	if (!accepts_clients || t->phase == TERM_STANDBY)
		return drop(COUNTER_drop_no_socket, false);
	if (tunnel_mtu_bytes && service->now.count > 1 && !is_syn(p))
		return host_unclaimed(ctx, p, t, socket, from);
	if (is_undecided(t) && !is_syn(p))
		return drop(COUNTER_drop_young, false);
	return punt(COUNTER_punt_here, false);
}

static __always_inline int host_flow(void *ctx, const struct packet *p,
				     struct flow *f,
				     const struct service *service,
				     const struct term *t,
				     const struct ip_addr *from)
{
	struct rewrite none = { .side = SIDE_NONE };
	struct route r;

	if (is_syn(p))
		flow_route(f, &r);
	else
		flow_to_owner(f, p, &r);
	if (r.state == FLOW_BLOCKED)
		return drop(COUNTER_drop_blocked, false);
	if (r.state == FLOW_FORWARD) {
		if (is_here(&r.via))
			return host_owned(ctx, p);
		if (tunnel_mtu_bytes)
			return send_in_tunnel(ctx, p, &r.via, false);
		return forward(ctx, p, &r.via, &none, COUNTER_forward_to_owner,
			       false);
	}
	/* The SYN may be forged, and the flow's owner may announce it yet. */
	if (is_undecided(t))
		return host_unowned(ctx, p, service, t, from);
	if (is_syn(p))
		flow_purge(f, p->now_ns, 0);
	else if (is_released(f))
		return drop(COUNTER_drop_released, false);
	return host_unowned(ctx, p, service, t, from);
}

/* `from`: the node that has sent the packet here in a tunnel, or NULL. */
static __always_inline int host_tcp(void *ctx, const struct packet *p,
				    const struct ip_addr *from)
{
	bool is_aside = accepts_clients && tunnel_mtu_bytes;
	struct service *service;
	struct term t;
	struct flow *f;
	int socket;

	if (!is_service_port(p->dest_port))
		return pass(false);
	service = service_find(&p->dest, p->dest_port);
	if (!service)
		return pass(false);
	f = flow_find(key_to_service(p));
	t = term_now();
	if (t.phase == TERM_STANDBY) {
		/* A copy of the flow may be outdated, and a live socket is not. */
		socket = find_socket(ctx, p, is_aside);
		if (socket == SOCKET_LIVE)
			return punt(COUNTER_punt_here, false);
		if (is_aside)
			return host_aside(ctx, p, f, socket);
	}
	return f ? host_flow(ctx, p, f, service, &t, from) :
		   host_unowned(ctx, p, service, &t, from);
}

/*
 * Handles a packet that another node's host has sent here in a tunnel. If that host took this
 * one for the arbiter, and it is, the packet goes on to its owner. Any other is for a socket of
 * this host: no two hosts send a packet to each other for ever. One whose flow the arbiter does
 * not know comes from the control address, and may acknowledge a SYN cookie.
 */
static __always_inline int host_arrived(struct __sk_buff *skb, struct packet *p)
{
	bool is_judged = !is_here(&p->dest) && !is_standby_now();
	bool is_unknown = is_arbiter(p, &p->source);
	struct ip_addr from ALIGNED;

	copy_addr(&from, &p->source);
	switch (leave_tunnel(skb, p)) {
	case PARSED_TCP:
		if (is_judged)
			return host_tcp(skb, p, &from);
		if (is_unknown &&
		    find_socket(skb, p, false) == SOCKET_COOKIE)
			return punt(COUNTER_punt_here, false);
		return host_owned(skb, p);
	case PARSED_ICMP:
		return is_judged ? steer_icmp(skb, p, false) : pass(false);
	}
	return drop(COUNTER_drop_tunnel, false);
}

#endif
