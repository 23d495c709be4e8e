// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Steers TCP packets: finds the flow and the owner of each, and its destination.
 */
#ifndef PRISM_STEER_H
#define PRISM_STEER_H

#include "forward.h"
#include "owner.h"

static __always_inline struct service *
service_find(const struct ip_addr *addr, __be16 port)
{
	struct service_key key ALIGNED;

	copy_addr(&key.addr, addr);
	key.port = port;
	key.zero = 0;
	return bpf_map_lookup_elem(&services, &key);
}

/* Whether any service uses this port. It saves most lookups in `services`. */
static __always_inline bool is_service_port(__be16 port)
{
	__u32 zero = 0;
	struct service_ports *ports =
		bpf_map_lookup_elem(&service_ports, &zero);

	return ports && (ports->word[port >> 6] >> (port & 63)) & 1;
}

/*
 * The frontend of a connection without flow. A frontend claims a connection soon after it has
 * accepted it. For that time after a change of the list, connections that opened since the
 * change are recorded, and all others go by the former list. A frontend that should have
 * challenged a SYN may have accepted it; then the flow has a tombstone (`is_noted`). Another
 * SYN may be repeated or forged, so it goes there too: that frontend can tell. One that is no
 * longer listed takes no new clients.
 */
static __always_inline const struct ip_addr *
frontend_of(const struct packet *p, const struct service *service, bool is_noted,
	    struct ip_addr *opened)
{
	const struct flow_key *key = key_to_service(p);
	bool is_changing = service->former_until_ns > p->now_ns;
	bool is_syn = (p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
	bool is_recorded = is_noted || (is_changing && !is_syn);
	const struct ip_addr *addr = NULL;

	if (is_recorded && closing_opened(key, opened) &&
	    (!is_syn || has_frontend(&service->now, opened))) {
		if (is_syn)
			closing_opens(key, opened, 0);
		return opened;
	}
	if (is_changing && !is_syn)
		addr = pick_frontend(&service->former, &p->source,
				     p->source_port);
	if (!addr)
		addr = pick_frontend(&service->now, &p->source, p->source_port);
	if (is_syn && is_changing && addr)
		closing_opens(key, addr, 0);
	else if (is_syn)
		closing_forget(key);
	return addr;
}

/*
 * The same in a young term, in which another node may yet announce the flow: only the packets of
 * connections that open in this term have one. NULL: there is none.
 */
static __always_inline const struct ip_addr *
young_frontend_of(const struct packet *p, const struct service *service,
		  __u32 term, struct ip_addr *opened)
{
	const struct ip_addr *addr;

	if (closing_while_young(p, term, opened))
		return opened;
	if ((p->tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN)
		return NULL;
	addr = pick_frontend(&service->now, &p->source, p->source_port);
	if (addr)
		closing_opens(key_to_service(p), addr, term);
	return addr;
}

static __always_inline int client_to_frontend(void *ctx, const struct packet *p,
					      const struct service *service,
					      bool is_noted, const bool xdp)
{
	struct rewrite none = { .side = SIDE_NONE };
	struct ip_addr opened ALIGNED;
	const struct ip_addr *addr;
	struct term t = term_now();

	if (is_undecided(&t)) {
		addr = young_frontend_of(p, service, t.number, &opened);
		if (!addr)
			return drop(COUNTER_drop_young, xdp);
	} else {
		addr = frontend_of(p, service, is_noted, &opened);
	}
	if ((p->tcp_flags & (TCP_SYN | TCP_FIN)) == TCP_FIN)
		closing_note(key_to_service(p), MARK_CLIENT_CLOSED, 0);
	if (!addr)
		return punt(COUNTER_punt_no_frontend, xdp);
	return forward(ctx, p, addr, &none, COUNTER_forward_to_frontend, xdp);
}

/* Whether the owner is a frontend, whose socket has the address of the service. */
static __always_inline bool is_at_service(const struct packet *p,
					  const struct route *r)
{
	return r->owner_port == p->dest_port && same_addr(&r->owner, &p->dest);
}

static __always_inline int client_to_owner(void *ctx, const struct packet *p,
					   const struct route *r, const bool xdp)
{
	struct rewrite rw = {
		.addr = &r->owner,
		.side = SIDE_DEST,
		.port = r->owner_port,
	};

	if (is_at_service(p, r)) {
		rw.side = SIDE_NONE;
		return forward(ctx, p, &r->via, &rw,
			       COUNTER_forward_to_frontend, xdp);
	}
	return forward(ctx, p, &r->via, &rw, COUNTER_forward_to_owner, xdp);
}

/* Handles a client's packet of a flow that has only a tombstone. */
static __always_inline int client_unowned(void *ctx, const struct packet *p,
					  const bool xdp)
{
	struct service *service = service_find(&p->dest, p->dest_port);

	return service ? client_to_frontend(ctx, p, service, true, xdp) :
			 pass(xdp);
}

/*
 * Handles a SYN of a flow that has an entry. Only the owner's kernel can tell a client's next
 * connection from a forgery: it challenges the SYN, and a client that has forgotten the
 * connection resets it (RFC 5961, section 4). The SYN does not count as a packet of the flow,
 * and does not keep it alive.
 */
static __always_inline int syn_to_service(void *ctx, const struct packet *p,
					  struct flow *f, const bool xdp)
{
	const struct flow_key *key = key_to_service(p);
	struct route r;

	flow_route(f, &r);
	if (r.state == FLOW_BLOCKED)
		return drop(COUNTER_drop_blocked, xdp);
	if (r.state == FLOW_ABSENT || is_over(key, f)) {
		/* The SYN may be forged, and the flow's owner may announce it yet. */
		if (r.state != FLOW_ABSENT || !is_undecided_now())
			flow_purge(f, p->now_ns, 0);
		return client_unowned(ctx, p, xdp);
	}
	if (!(flow_marks(f) & MARK_CHALLENGED))
		flow_mark(f, MARK_CHALLENGED);
	if (is_at_service(p, &r))
		closing_opens(key, &r.via, 0);
	count(COUNTER_flow_syn_challenged);
	return client_to_owner(ctx, p, &r, xdp);
}

static __always_inline int client_to_service(void *ctx, const struct packet *p,
					     struct flow *f, const bool xdp)
{
	struct route r;

	if ((p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
		return syn_to_service(ctx, p, f, xdp);
	flow_to_owner(f, p, &r);
	if (r.state == FLOW_FORWARD)
		return client_to_owner(ctx, p, &r, xdp);
	if (r.state == FLOW_BLOCKED)
		return drop(COUNTER_drop_blocked, xdp);
	/*
	 * The owner's socket is gone, so both ends have closed. This packet is an
	 * acknowledgement after a reordering; a frontend would answer it with a RST.
	 */
	if (is_released(f) && !is_undecided_now())
		return drop(COUNTER_drop_released, xdp);
	return client_unowned(ctx, p, xdp);
}

/*
 * Whether the packet is a reset to a client in a young term. The host may have no socket because
 * the flow is elsewhere, and its owner may announce it yet.
 */
static __always_inline bool is_young_reset(const struct packet *p)
{
	return p->tcp_flags & TCP_RST && is_undecided_now();
}

/* Handles a frontend's packet, which passes unless the flow is blocked or elsewhere. */
static __always_inline int frontend_to_client(void *ctx, const struct packet *p,
					      const bool xdp)
{
	struct rewrite none = { .side = SIDE_NONE };
	struct route r = { .state = FLOW_ABSENT };
	struct flow_key key ALIGNED;
	struct flow *f;

	if (is_young_reset(p))
		return drop(COUNTER_drop_young_reset, xdp);
	key_to_client(&key, p, &p->source, p->source_port);
	f = flow_find(&key);
	if (f) {
		flow_route(f, &r);
		flow_to_client(&key, f, p, &r);
	}
	if (r.state == FLOW_BLOCKED)
		return drop(COUNTER_drop_blocked, xdp);
	if (r.state == FLOW_FORWARD && !is_from_owner(p, &r))
		return drop(COUNTER_drop_not_owner, xdp);
	/* An answer that is no RST accepts the SYN for a new connection. */
	if (r.answers_syn && p->tcp_flags & TCP_RST)
		return drop(COUNTER_drop_syn_refused, xdp);
	if (r.is_late_reset ||
	    (r.state == FLOW_ABSENT && p->tcp_flags & (TCP_FIN | TCP_RST) &&
	     closing_to_client(&key, p)))
		return drop(COUNTER_drop_late_reset, xdp);
	if (r.state == FLOW_ABSENT && p->tcp_flags & TCP_SYN &&
	    is_undecided_now())
		closing_answers(&key, p);
	return forward(ctx, p, &p->dest, &none,
		       COUNTER_forward_from_frontend, xdp);
}

/* Whether the packet would show a backend's address to the outside. */
static __always_inline bool is_backend_to_outside(const struct packet *p)
{
	struct node *node = bpf_map_lookup_elem(&nodes, &p->source);

	if (!node || !(node->roles & ROLE_BACKEND))
		return false;
	node = bpf_map_lookup_elem(&nodes, &p->dest);
	return !node || node->roles & ROLE_FORMER;
}

static __always_inline int unmatched(const struct packet *p, const bool xdp)
{
	if (is_backend_to_outside(p))
		return drop(COUNTER_drop_unmatched_backend, xdp);
	return pass(xdp);
}

static __always_inline int owner_to_client(void *ctx, const struct packet *p,
					   const bool xdp)
{
	struct flow_key key ALIGNED;
	struct route r = {};
	struct flow *f = find_owned(p, &key, &r);
	struct rewrite rw = {
		.addr = &key.vip,
		.side = SIDE_SOURCE,
		.port = key.vip_port,
	};

	if (!f)
		return unmatched(p, xdp);
	if (is_young_reset(p))
		return drop(COUNTER_drop_young_reset, xdp);
	flow_to_client(&key, f, p, &r);
	if (r.state == FLOW_BLOCKED)
		return drop(COUNTER_drop_blocked, xdp);
	if (r.answers_syn)
		return drop(COUNTER_drop_syn_refused, xdp);
	if (r.is_late_reset)
		return drop(COUNTER_drop_late_reset, xdp);
	return forward(ctx, p, &p->dest, &rw, COUNTER_forward_to_client,
		       xdp);
}

static __always_inline int steer_tcp(void *ctx, const struct packet *p,
				     const bool xdp)
{
	if (is_service_port(p->dest_port)) {
		struct flow *f = flow_find(key_to_service(p));
		struct service *service;

		if (f)
			return client_to_service(ctx, p, f, xdp);
		service = service_find(&p->dest, p->dest_port);
		if (service)
			return client_to_frontend(ctx, p, service, false, xdp);
	}
	if (is_service_port(p->source_port) &&
	    service_find(&p->source, p->source_port))
		return frontend_to_client(ctx, p, xdp);
	return owner_to_client(ctx, p, xdp);
}

/* Whether a packet without ports may be of a service or a flow. */
static __always_inline bool may_be_steered(const struct packet *p)
{
	return service_find(&p->dest, 0) || service_find(&p->source, 0) ||
	       is_backend_to_outside(p);
}

/*
 * Drops fragments of service TCP. TCP does not fragment unless path MTU discovery is broken,
 * and a fragment without ports has no owner. Behind the extension headers of an IPv6 fragment
 * there may be TCP.
 */
static __always_inline int steer_fragment(const struct packet *p, const bool xdp)
{
	return may_be_tcp(p) && may_be_steered(p) ?
		       drop(COUNTER_drop_fragment, xdp) :
		       pass(xdp);
}

/* Drops packets whose extension headers may hide TCP of a service. */
static __always_inline int steer_refused(const struct packet *p, const bool xdp)
{
	return may_be_steered(p) ? drop(COUNTER_drop_extension, xdp) : pass(xdp);
}

#endif
