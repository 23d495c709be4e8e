// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Connections without a flow, which frontends own: their ends, and the frontend of each
 * while the term is young or the list of frontends changes. A flow's entry records its own end (flow.h). It
 * needs this table only if the client closed before the flow had an owner.
 *
 * A host without a socket for a segment answers with a RST without ACK, whose sequence
 * number is the segment's acknowledgement. If that is the number after the frontend's FIN,
 * the client has received everything. If the client has closed too, the RST is useless.
 */
#ifndef PRISM_CLOSING_H
#define PRISM_CLOSING_H

#include "parse.h"

/* Records a FIN that has passed. The other end's FIN may pass at the same time. */
static __noinline int closing_note(const struct flow_key *key, __u32 mark,
				   __u32 end_seq)
{
	struct closing fresh = { .end_seq = end_seq, .marks = mark };
	struct closing *c;

	if (!bpf_map_update_elem(&closings, key, &fresh, BPF_NOEXIST))
		return 0;
	c = bpf_map_lookup_elem(&closings, key);
	if (!c)
		return 0;
	if (mark == MARK_CLOSED)
		c->end_seq = end_seq;
	__sync_fetch_and_or(&c->marks, mark);
	return 0;
}

static __noinline int closing_has(const struct flow_key *key, __u32 marks)
{
	struct closing *c = bpf_map_lookup_elem(&closings, key);

	return c && (c->marks & marks) == marks;
}

/* Handles a frontend's packet without a flow. 1: a RST of a connection that is over. */
static __noinline int closing_to_client(const struct flow_key *key,
					const struct packet *p)
{
	struct closing *c;

	if (p->tcp_flags & TCP_FIN)
		closing_note(key, MARK_CLOSED, tcp_end(p));
	if ((p->tcp_flags & (TCP_RST | TCP_ACK)) != TCP_RST)
		return 0;
	c = bpf_map_lookup_elem(&closings, key);
	return c && (~c->marks & (MARK_CLOSED | MARK_CLIENT_CLOSED)) == 0 &&
	       c->end_seq == bpf_ntohl(p->tcp_seq);
}

/* Records that the connection is opened at `frontend`, in a young term if that is not 0. */
static __noinline int closing_opens(const struct flow_key *key,
				    const struct ip_addr *frontend,
				    __u32 young_term)
{
	struct closing fresh = {
		.frontend = *frontend,
		.young_term = young_term,
		.since_ns = bpf_ktime_get_tai_ns(),
	};

	bpf_map_update_elem(&closings, key, &fresh, BPF_ANY);
	return 0;
}

/* Gets the frontend at which the connection was opened. 0: it is not known. */
static __noinline int closing_opened(const struct flow_key *key,
				     struct ip_addr *frontend)
{
	struct closing *c = bpf_map_lookup_elem(&closings, key);

	if (!c || is_zero_addr(&c->frontend))
		return 0;
	copy_addr(frontend, &c->frontend);
	return 1;
}

/* Handles a frontend's answer to the SYN of a young term. */
static __noinline int closing_answers(const struct flow_key *key,
				      const struct packet *p)
{
	struct closing *c = bpf_map_lookup_elem(&closings, key);

	if (!c || !c->young_term)
		return 0;
	c->open_seq = bpf_ntohl(p->tcp_seq) + 1;
	__sync_fetch_and_or(&c->marks, CLOSING_ANSWERED);
	return 0;
}

/*
 * Gets the frontend of a client's packet in a young term. A SYN goes where the one before it
 * went, because that frontend can tell them apart. Any other packet passes once the client has
 * acknowledged the frontend's answer: then it has no other connection. 0: not recorded.
 */
static __noinline int closing_while_young(const struct packet *p, __u32 term,
					  struct ip_addr *frontend)
{
	struct closing *c = bpf_map_lookup_elem(&closings, p);
	__u8 kind = p->tcp_flags & (TCP_SYN | TCP_RST | TCP_ACK);

	if (!c || c->young_term != term || is_zero_addr(&c->frontend))
		return 0;
	if (kind != TCP_SYN && !(c->marks & CLOSING_OPEN)) {
		if (kind != TCP_ACK || !(c->marks & CLOSING_ANSWERED) ||
		    bpf_ntohl(p->tcp_ack) != c->open_seq)
			return 0;
		__sync_fetch_and_or(&c->marks, CLOSING_OPEN);
	}
	copy_addr(frontend, &c->frontend);
	return 1;
}

/*
 * Whether the client has opened another connection in this young term than the announced one,
 * which has then been over since. Its frontend may announce the new one itself.
 */
static __noinline int closing_outranks(const struct flow_key *key, __u32 term,
				       __u64 epoch,
				       const struct control_message *m)
{
	struct closing *c = bpf_map_lookup_elem(&closings, key);

	if (!c || c->young_term != term || !(c->marks & CLOSING_OPEN) ||
	    epoch >= c->since_ns)
		return 0;
	return m->owner_port != key->vip_port ||
	       !same_addr(&m->owner_addr, &key->vip) ||
	       !same_addr(&m->via_addr, &c->frontend);
}

/* Forgets the end of an earlier connection, and its frontend. */
static __always_inline void closing_forget(const struct flow_key *key)
{
	bpf_map_delete_elem(&closings, key);
}

#endif
