// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Containment (docs/protocol.md, section 1.10): what the node that has signed a command may change.
 * A sender without a node, whose key all nodes share, may change every flow of its tenant.
 *
 * A node takes a flow from another one only with that node's pass, which is for one epoch.
 */
#ifndef PRISM_CONTAIN_H
#define PRISM_CONTAIN_H

#include "flow.h"
#include "siphash.h"

/* The sender of a command, and what is known of it before the flow's entry is locked. */
struct claimant {
	const struct sender *sender;
	bool is_contained;
	bool is_frontend;	/* the node that is to own the flow */
	bool has_pass;
	struct ip_addr passed_by;	/* via of the flow when the pass was checked */
	bool is_passed;		/* the pass is that node's */
} ALIGNED;

static __always_inline bool is_at(const struct sender *s,
				  const struct ip_addr *addr)
{
	return same_addr(&s->addrs[0], addr) || same_addr(&s->addrs[1], addr);
}

static __always_inline bool is_contained(const struct sender *s)
{
	return !is_zero_addr(&s->addrs[0]) || !is_zero_addr(&s->addrs[1]);
}

static __always_inline void claimant_of(struct claimant *c,
					const struct sender *sender,
					const struct control_message *m)
{
	struct node *node;

	c->sender = sender;
	c->is_contained = is_contained(sender);
	if (!c->is_contained || !(m->ops & OP_OWN))
		return;
	node = bpf_map_lookup_elem(&nodes, &m->via_addr);
	c->is_frontend = node && node->roles & ROLE_FRONTEND;
}

/* Takes the pass out of a request, and puts the owner's address in its place. */
static __always_inline bool take_pass(struct control_scratch *s)
{
	struct control_message *m = &s->request;

	if (!(m->ops & OP_OWN))
		return false;
	__builtin_memcpy(&s->pass, &m->owner_addr, sizeof(s->pass));
	if (s->pass.at_service > 1 || s->pass.zero[0] | s->pass.zero[1] |
					      s->pass.zero[2])
		return false;
	m->owner_addr = s->pass.at_service ? m->vip_addr : m->via_addr;
	return true;
}

static __always_inline void put_pass_back(struct control_scratch *s)
{
	__builtin_memcpy(&s->request.owner_addr, &s->pass, sizeof(s->pass));
}

/* The pass by the key `key_id`; 0: there is no such key. */
static __always_inline __be64 pass_by(struct control_scratch *s, __u32 key_id)
{
	struct sender *by = key_id ? bpf_map_lookup_elem(&senders, &key_id) :
				     NULL;

	return by ? pass_mac(&s->passage, by) : 0;
}

/* Whether the pass is the word of the key `key_id`, through another node if it names one. */
static __always_inline bool is_word_of(struct control_scratch *s, __u32 key_id,
				       const struct sender *through)
{
	const struct control_message *m = &s->request;
	__be64 mac;

	s->passage.before = 0;
	s->passage.via = m->via_addr;
	if (through)
		s->passage.via = through->addrs[!is_mapped(&m->via_addr)];
	mac = pass_by(s, key_id);
	if (!mac || !through)
		return mac && mac == s->pass.mac;
	s->passage.before = mac;
	s->passage.via = m->via_addr;
	return pass_mac(&s->passage, through) == s->pass.mac;
}

/* Checks the pass of the node that owns the flow at present. */
static __always_inline void check_pass(struct control_scratch *s,
				       const struct ip_addr *owner,
				       struct claimant *c)
{
	const struct control_message *m = &s->request;
	struct node_id id ALIGNED = { .addr = *owner,
				      .tenant = c->sender->tenant };
	__u32 through_id = bpf_ntohl(s->pass.through);
	const struct sender *through = NULL;
	struct node_keys *keys;

	c->passed_by = *owner;
	keys = bpf_map_lookup_elem(&node_keys, &id);
	if (!keys)
		return;
	if (through_id) {
		through = bpf_map_lookup_elem(&senders, &through_id);
		if (!through || through->tenant != c->sender->tenant ||
		    !is_contained(through))
			return;
	}
	s->passage.client = m->client_addr;
	s->passage.vip = m->vip_addr;
	s->passage.epoch = m->epoch;
	s->passage.client_port = m->client_port;
	s->passage.vip_port = m->vip_port;
	s->passage.zero = 0;
	c->is_passed = is_word_of(s, keys->key_id[0], through) ||
		       is_word_of(s, keys->key_id[1], through);
}

/*
 * Whether the sender may change the flow as it asks. An announcement may make a flow that is not
 * known in the present term (`is_known`); nothing else of it counts.
 */
static __always_inline bool may_change(const struct claimant *c,
				       const struct control_message *m,
				       const struct flow_view *view,
				       bool announces, bool is_known)
{
	bool is_absent = view->state == FLOW_ABSENT;

	if (!c->is_contained)
		return true;
	if (!(m->ops & OP_OWN))
		return is_absent ? !announces : is_at(c->sender, &view->via);
	if (!is_at(c->sender, &m->via_addr))
		return false;
	if (announces && (is_absent || !is_known))
		return true;
	if (is_absent)
		return c->is_frontend;
	return is_at(c->sender, &view->via) ||
	       (c->is_passed && same_addr(&c->passed_by, &view->via));
}

#endif
