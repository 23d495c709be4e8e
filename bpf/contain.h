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

static __always_inline bool is_at(const struct sender *s,
				  const struct ip_addr *addr)
{
	return same_addr(&s->addrs[0], addr) || same_addr(&s->addrs[1], addr);
}

static __always_inline bool is_contained(const struct sender *s)
{
	return !is_zero_addr(&s->addrs[0]) || !is_zero_addr(&s->addrs[1]);
}

/* Begins the claim of the sender to what it commands. */
static __always_inline void claim_of(struct control_scratch *s,
				     const struct sender *sender)
{
	const struct control_message *m = &s->request;
	struct claim *c = &s->claim;
	struct node *node = NULL;

	c->is_contained = is_contained(sender);
	c->is_passed = false;
	if (c->is_contained && m->ops & OP_OWN)
		node = bpf_map_lookup_elem(&nodes, &m->via_addr);
	c->is_frontend = node && node->roles & ROLE_FRONTEND;
	/*
	 * The packets of an owner are known by its address and port alone. By those of another
	 * node, the flow would take that node's packets to this client from their own flow.
	 */
	c->names_itself = is_at(sender, &m->via_addr) &&
			  (is_at(sender, &m->owner_addr) ||
			   owned_by_vip(&s->key, &m->owner_addr,
					m->owner_port));
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
				       const struct sender *sender)
{
	const struct control_message *m = &s->request;
	__u32 through_id = bpf_ntohl(s->pass.through);
	const struct sender *through = NULL;
	struct node_keys *keys;

	s->passed_by.addr = *owner;
	s->passed_by.tenant = sender->tenant;
	s->passed_by.zero = 0;
	keys = bpf_map_lookup_elem(&node_keys, &s->passed_by);
	if (!keys)
		return;
	if (through_id) {
		through = bpf_map_lookup_elem(&senders, &through_id);
		if (!through || through->tenant != sender->tenant ||
		    !is_contained(through))
			return;
	}
	s->passage.client = m->client_addr;
	s->passage.vip = m->vip_addr;
	s->passage.epoch = m->epoch;
	s->passage.client_port = m->client_port;
	s->passage.vip_port = m->vip_port;
	s->passage.zero = 0;
	s->claim.is_passed = is_word_of(s, keys->key_id[0], through) ||
			     is_word_of(s, keys->key_id[1], through);
}

/* Whether the command names the flow's present owner. */
static __always_inline bool names_owner(const struct control_message *m,
					const struct flow_view *view)
{
	return m->owner_port == view->owner_port &&
	       same_addr(&m->owner_addr, &view->owner) &&
	       same_addr(&m->via_addr, &view->via);
}

/*
 * Whether the sender may change the flow as it asks. An announcement may make a flow that is not
 * known in the present term (`is_known`); nothing else of it counts. The entries of a standby are
 * hints: the copy that told of the node before may have been left out.
 */
static __always_inline bool may_change(const struct control_scratch *s,
				       const struct sender *sender,
				       const struct flow_view *view,
				       const struct way *way, bool is_known)
{
	const struct control_message *m = &s->request;
	bool is_absent = view->state == FLOW_ABSENT;
	bool announces = way->admission == ADMIT_MERGE;

	if (!s->claim.is_contained)
		return true;
	if (m->ops & OP_OWN && !s->claim.names_itself)
		return false;
	if (way->term.phase == TERM_STANDBY)
		return true;
	if (!(m->ops & OP_OWN))
		return is_absent ? !announces : is_at(sender, &view->via);
	if (announces && (is_absent || !is_known))
		return true;
	/*
	 * A sender with a pass was handed the flow, or takes it back. It makes no flow, and puts no
	 * other socket in the place of its own.
	 */
	if (is_absent)
		return s->claim.is_frontend && !s->claim.has_pass;
	if (is_at(sender, &view->via) &&
	    (!s->claim.has_pass || names_owner(m, view)))
		return true;
	return s->claim.is_passed && same_addr(&s->passed_by.addr, &view->via);
}

#endif
