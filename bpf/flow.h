// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The flow table.
 *
 * Commands (command.h), SYNs (here) and the agent (collect.h) write entries, under the
 * entry's lock. Epochs only grow, in any order of these. Packets read an entry without the
 * lock if the CPU orders memory; if its version is odd, or changes meanwhile, they take the
 * lock. Statistics are plain additions. Two CPUs add at the same time only while the packets
 * of one direction move between them; then one addition may be lost. A packet that passes
 * while its flow changes may be counted before or after the change.
 *
 * An owner's packet does not name its service. The program looks for it among the services of
 * the owner's tenant, by their flows with this client and owner (owner.h), so that no second
 * table has to agree with this one.
 */
#ifndef PRISM_FLOW_H
#define PRISM_FLOW_H

#include "closing.h"
#include "term.h"

/* A flow's entry at one moment. */
struct flow_view {
	__u64 epoch;
	struct ip_addr owner;
	struct ip_addr via;
	__be16 owner_port;
	__u8 state;
};

/* The part of a flow that the data path needs. */
struct route {
	struct ip_addr owner;
	struct ip_addr via;
	__be16 owner_port;
	__u8 state;
	bool is_late_reset;	/* of this packet; see flow_to_client */
	bool answers_syn;	/* of this packet; see syn_answer */
} ALIGNED;

/* The key of the flow that a packet to a service belongs to: the packet begins with it. */
static __always_inline const struct flow_key *key_to_service(const struct packet *p)
{
	_Static_assert(offsetof(struct flow_key, client) ==
				       offsetof(struct packet, source) &&
			       offsetof(struct flow_key, vip) ==
				       offsetof(struct packet, dest) &&
			       offsetof(struct flow_key, client_port) ==
				       offsetof(struct packet, source_port) &&
			       offsetof(struct flow_key, vip_port) ==
				       offsetof(struct packet, dest_port),
		       "a packet begins with its key");
	return (const struct flow_key *)p;
}

/* Makes the key of the flow that a packet to a client belongs to. */
static __always_inline void key_to_client(struct flow_key *key,
					  const struct packet *p,
					  const struct ip_addr *vip,
					  __be16 vip_port)
{
	copy_addr(&key->client, &p->dest);
	copy_addr(&key->vip, vip);
	key->client_port = p->dest_port;
	key->vip_port = vip_port;
}

static __always_inline __u8 flow_marks(const struct flow *f)
{
	return *(volatile const __u8 *)&f->marks;
}

/* Whether the entry is about to be deleted, which is final. */
static __always_inline bool is_doomed(const struct flow *f)
{
	return flow_marks(f) & MARK_DOOMED;
}

/* Whether the flow is absent because its owner's socket is gone. */
static __always_inline bool is_released(const struct flow *f)
{
	return flow_marks(f) & MARK_RELEASED;
}

/* The entry of a flow, unless it is about to be deleted. */
static __always_inline struct flow *flow_find(const struct flow_key *key)
{
	struct flow *f = bpf_map_lookup_elem(&flows, key);

	return f && !is_doomed(f) ? f : NULL;
}

#define compiler_barrier() asm volatile("" ::: "memory")

/* Begins a change that packets must see as one. Under the lock. */
static __always_inline void change_begin(struct flow *f)
{
	f->version++;
	compiler_barrier();
}

static __always_inline void change_end(struct flow *f)
{
	compiler_barrier();
	f->version++;
}

/* Reads the route without the lock. False: the caller must take the lock. */
static __always_inline bool flow_peek(const struct flow *f, struct route *r)
{
	const volatile struct flow *v = f;
	const volatile addr_half *owner = (const volatile addr_half *)&f->owner;
	const volatile addr_half *via = (const volatile addr_half *)&f->via;
	__u16 version = v->version;

	if (!has_ordered_memory || version & 1)
		return false;
	r->state = v->state;
	((addr_half *)&r->owner)[0] = owner[0];
	((addr_half *)&r->owner)[1] = owner[1];
	((addr_half *)&r->via)[0] = via[0];
	((addr_half *)&r->via)[1] = via[1];
	r->owner_port = v->owner_port;
	return v->version == version;
}

/* The route of a flow, all of one moment. */
static __always_inline void flow_route(struct flow *f, struct route *r)
{
	if (flow_peek(f, r))
		return;
	bpf_spin_lock(&f->lock);
	r->state = f->state;
	copy_addr(&r->owner, &f->owner);
	copy_addr(&r->via, &f->via);
	r->owner_port = f->owner_port;
	bpf_spin_unlock(&f->lock);
}

/* Counts a packet of the flow. */
static __always_inline void flow_count(struct flow *f, const struct packet *p,
				       enum direction direction)
{
	if (f->last_seen_ns != p->now_ns)
		f->last_seen_ns = p->now_ns;
	f->packets[direction] += 1;
	f->bytes[direction] += p->bytes;
}

/*
 * Records the sequence number that the client expects after all packets so far. The packets
 * of a flow come on one CPU except while queues change; the next packet repairs a loss.
 */
static __always_inline void flow_sequence(struct flow *f, const struct packet *p)
{
	__u32 end = tcp_end(p);

	if (!f->packets[TO_CLIENT] || (__s32)(end - f->next_seq) > 0)
		f->next_seq = end;
}

static __noinline void flow_mark(struct flow *f, __u8 marks)
{
	bpf_spin_lock(&f->lock);
	if (f->state == FLOW_FORWARD)
		f->marks |= marks;
	bpf_spin_unlock(&f->lock);
}

/* Records what a client's packet tells about the end of the connection. */
static __always_inline void client_closes(struct flow *f, const struct packet *p)
{
	__u8 marks = p->tcp_flags & TCP_FIN ? MARK_CLIENT_CLOSED : 0;

	if (flow_marks(f) & MARK_CLOSED && p->tcp_flags & TCP_ACK &&
	    (__s32)(bpf_ntohl(p->tcp_ack) - f->next_seq) >= 0)
		marks |= MARK_CLOSE_KNOWN;
	if (marks & ~flow_marks(f))
		flow_mark(f, marks);
}

/* Whether both ends have closed, and the client has all data of the owner. */
static __always_inline bool is_over(const struct flow_key *key,
				    const struct flow *f)
{
	__u8 missing = CLOSE_MARKS & ~flow_marks(f);

	return !missing || (missing == MARK_CLIENT_CLOSED &&
			    closing_has(key, MARK_CLIENT_CLOSED));
}

/* Gets the route for a client's packet, and counts the packet. */
static __always_inline void flow_to_owner(struct flow *f, const struct packet *p,
					  struct route *r)
{
	flow_route(f, r);
	if (r->state != FLOW_FORWARD)
		return;
	client_closes(f, p);
	flow_count(f, p, TO_OWNER);
}

/* Makes the entry the tombstone of its flow. Under the lock. */
static __always_inline void make_tombstone(struct flow *f, __u64 epoch,
					   __u64 now_ns)
{
	change_begin(f);
	f->state = FLOW_ABSENT;
	f->epoch = epoch;
	f->last_seen_ns = now_ns;
	f->owner_port = 0;
	f->owner_run = 0;
	f->marks &= ~(MARK_RELEASED | MARK_CHALLENGED | CLOSE_MARKS);
	__builtin_memset(&f->owner, 0, sizeof(f->owner));
	__builtin_memset(&f->via, 0, sizeof(f->via));
	change_end(f);
}

/*
 * Ends a flow whose client opens a new connection, so that nothing of the old one acts on it.
 * Only if the flow still has all of `marks`.
 */
static __noinline int flow_purge(struct flow *f, __u64 now_ns, __u8 marks)
{
	__u64 clock_ns = bpf_ktime_get_tai_ns();
	__u8 state = FLOW_ABSENT;

	bpf_spin_lock(&f->lock);
	if ((f->marks & marks) == marks) {
		state = f->state;
		make_tombstone(f, clock_ns > f->epoch ? clock_ns : f->epoch,
			       now_ns);
	}
	bpf_spin_unlock(&f->lock);
	if (state != FLOW_ABSENT)
		count(COUNTER_flow_syn_purged);
	return 0;
}

/*
 * Whether a packet of the owner shows that it has no socket for the SYN of a live flow
 * (steer.h). Then the flow is over. An owner with the socket challenges the SYN with an
 * ordinary packet. A host without it sends a reset with the sequence number 0 (RFC 9293,
 * section 3.10.7.1); a connection's own reset has that number once in 2^32 times. A frontend
 * may accept the SYN instead. A young term ends no flow for that: its owner may announce it yet.
 */
static __always_inline bool syn_answer(const struct flow_key *key,
				       struct flow *f, const struct packet *p)
{
	__u8 kind = p->tcp_flags & (TCP_SYN | TCP_RST | TCP_ACK);

	if (!(flow_marks(f) & MARK_CHALLENGED))
		return false;
	if (kind != (TCP_SYN | TCP_ACK) &&
	    (kind != (TCP_RST | TCP_ACK) || p->tcp_seq))
		return false;
	if (is_undecided_now())
		return true;
	flow_purge(f, p->now_ns, MARK_CHALLENGED);
	if (p->tcp_flags & TCP_RST)
		bpf_map_delete_elem(&closings, key);
	return true;
}

static __always_inline bool is_from_owner(const struct packet *p,
					  const struct route *r)
{
	return r->owner_port == p->source_port &&
	       same_addr(&r->owner, &p->source);
}

/*
 * Judges and counts a packet to the client, if it is from the owner.
 *
 * An owner resets a connection that is over if its socket is gone, and the client's TIME_WAIT
 * acknowledges a late or repeated segment. The client must not see that reset.
 */
static __always_inline void flow_to_client(const struct flow_key *key,
					   struct flow *f,
					   const struct packet *p,
					   struct route *r)
{
	if (r->state != FLOW_FORWARD || !is_from_owner(p, r))
		return;
	r->answers_syn = syn_answer(key, f, p);
	if (r->answers_syn)
		return;
	if (p->tcp_flags & TCP_RST && is_over(key, f)) {
		r->is_late_reset = true;
		return;
	}
	/* Before the mark, because readers of the mark compare with this number. */
	flow_sequence(f, p);
	if (p->tcp_flags & TCP_FIN)
		flow_mark(f, MARK_CLOSED);
	flow_count(f, p, TO_CLIENT);
}

/* Whether the owner is a frontend's socket of the VIP, so that nothing is rewritten. */
static __always_inline bool owned_by_vip(const struct flow_key *key,
					 const struct ip_addr *owner,
					 __be16 owner_port)
{
	return owner_port == key->vip_port && same_addr(owner, &key->vip);
}

#endif
