// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Finds the flow of an owner's packet, which does not name its service. Hints spare the search
 * among the services of the owner's tenant.
 */
#ifndef PRISM_OWNER_H
#define PRISM_OWNER_H

#include "flow.h"

/* The flow of `key` and its route; NULL: the packet's sender does not own it. */
static __always_inline struct flow *
owned_flow(const struct packet *p, const struct flow_key *key, struct route *r)
{
	struct flow *f = flow_find(key);

	if (!f)
		return NULL;
	flow_route(f, r);
	return r->state != FLOW_ABSENT && is_from_owner(p, r) ? f : NULL;
}

/* What an owner's packet is known by: the words of its addresses, and its ports. */
struct owner_ends {
	__u32 owner;
	__u32 client;
	__be16 owner_port;
	__be16 client_port;
};

/* The ends of an owner's packets to any client. */
static __always_inline struct owner_ends any_client(const struct owner_ends *e)
{
	return (struct owner_ends){
		.owner = e->owner,
		.owner_port = e->owner_port,
	};
}

static __always_inline struct owner_hint *hint_slot(const struct owner_ends *e)
{
	__u32 ports = (__u32)e->owner_port << 16 | e->client_port;
	__u32 index = mix((e->client + e->owner * 0x9e3779b1) ^ ports) &
		      (HINT_SLOTS - 1);

	return bpf_map_lookup_elem(&owner_hints, &index);
}

static __always_inline bool is_hint_for(const struct owner_hint *hint,
					const struct owner_ends *e)
{
	return hint->owner == e->owner && hint->client == e->client &&
	       hint->owner_port == e->owner_port &&
	       hint->client_port == e->client_port;
}

/*
 * The hint for a packet; NULL: none. An owner of one service needs one hint for all its clients.
 * Hints for single clients are for owners of several: there are far more flows than slots.
 */
static __always_inline struct owner_hint *hint_for(const struct owner_ends *e)
{
	const struct owner_ends any = any_client(e);
	struct owner_hint *of_owner = hint_slot(&any), *of_client;

	if (of_owner && !is_hint_for(of_owner, &any))
		of_owner = NULL;
	if (of_owner && !of_owner->is_mixed)
		return of_owner;
	of_client = hint_slot(e);
	return of_client && is_hint_for(of_client, e) ? of_client : of_owner;
}

static __always_inline void hint_write(const struct owner_ends *e,
				       const struct flow_key *key)
{
	struct owner_hint *hint = hint_slot(e);
	bool is_changed;

	if (!hint)
		return;
	is_changed = hint->vip_port != key->vip_port ||
		     !same_addr(&hint->vip, &key->vip);
	hint->is_mixed = is_hint_for(hint, e) && (hint->is_mixed || is_changed);
	copy_addr(&hint->vip, &key->vip);
	hint->vip_port = key->vip_port;
	hint->owner = e->owner;
	hint->client = e->client;
	hint->owner_port = e->owner_port;
	hint->client_port = e->client_port;
}

/* Notes the service of an owner's packet: for its client, and for all. */
static __always_inline void hint_note(const struct owner_ends *e,
				      const struct flow_key *key)
{
	const struct owner_ends any = any_client(e);

	hint_write(e, key);
	hint_write(&any, key);
}

/* The services of a node; NULL: it is none, and was none. */
static __always_inline struct tenant *tenant_of(const struct ip_addr *addr)
{
	struct node *node = bpf_map_lookup_elem(&nodes, addr);

	return node ? bpf_map_lookup_elem(&tenants, &node->tenant) : NULL;
}

/*
 * Looks for the flow that the packet's sender owns among the services of its tenant. 1: `key`
 * is its key. The function is global, so that it is verified once. Linux 6.1 takes no keys of
 * maps from the memory of its arguments, so they are copied.
 */
__noinline int search_services(const struct packet *p, struct flow_key *key)
{
	struct flow_key candidate ALIGNED;
	struct ip_addr addr ALIGNED;
	struct tenant *tenant;
	struct route r;

	if (!p || !key)
		return 0;
	copy_addr(&addr, &p->source);
	tenant = tenant_of(&addr);
	if (!tenant)
		return 0;
	for (int i = 0; i < MAX_TENANT_SERVICES; i++) {
		if (i >= tenant->service_count)
			return 0;
		/* Not copy_addr: the entries of the list are not aligned. */
		addr = tenant->services[i].addr;
		if (is_mapped(&addr) == p->is_v6)
			continue;
		key_to_client(&candidate, p, &addr, tenant->services[i].port);
		if (owned_flow(p, &candidate, &r)) {
			*key = candidate;
			return 1;
		}
	}
	return 0;
}

/*
 * Finds the flow that the packet's sender owns, and its key. A hint may be of any age, or of
 * other IPv6 addresses with the same words, because the flow's entry decides: a wrong hint
 * only costs a lookup.
 */
static __always_inline struct flow *
find_owned(const struct packet *p, struct flow_key *key, struct route *r)
{
	const struct owner_ends ends = {
		.owner = addr_word(&p->source),
		.client = addr_word(&p->dest),
		.owner_port = p->source_port,
		.client_port = p->dest_port,
	};
	struct owner_hint *hint = hint_for(&ends);
	struct flow *f;

	__builtin_memset(key, 0, sizeof(*key));
	if (hint) {
		key_to_client(key, p, &hint->vip, hint->vip_port);
		f = owned_flow(p, key, r);
		if (f)
			return f;
	}
	if (!search_services(p, key))
		return NULL;
	hint_note(&ends, key);
	return owned_flow(p, key, r);
}

#endif
