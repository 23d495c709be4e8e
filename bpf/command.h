// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Commands for flows (docs/protocol.md, sections 1.2 to 1.4): authorization, the order of
 * epochs, and the change of the flow. control.h has the message and its answer.
 *
 * A command is judged under the lock of the flow's entry, if there is one, so that decision
 * and change are one step.
 */
#ifndef PRISM_COMMAND_H
#define PRISM_COMMAND_H

#include "contain.h"

/* The command is to be applied, is about another node's flow, or is not answered. Inside the
 * program only, not on the wire. */
#define STATUS_APPLY 0xff
#define STATUS_SILENCE 0xfe
#define STATUS_FOREIGN 0xfd

/* Whether `ops` is a combination with a meaning. */
static __always_inline bool are_ops_valid(__u8 ops)
{
	if (ops & ~OP_ALL || (ops & OP_BLOCK && ops & OP_UNBLOCK))
		return false;
	return !(ops & OP_RELEASE) || ops == OP_RELEASE;
}

/* Whether an announcement states something; also of a command that is none. */
static __always_inline bool is_announcement_valid(const struct control_message *m)
{
	return (m->ops & OP_OWN || m->ops == OP_RELEASE) &&
	       bpf_be64_to_cpu(m->epoch) < max_epoch;
}

/* `m->ops` is without OP_ANNOUNCE, unless there is no term. */
static __always_inline bool is_request_valid(const struct control_message *m,
					     const struct way *way)
{
	if (m->status || m->state || !are_ops_valid(m->ops))
		return false;
	if (way->term.phase == TERM_NONE && term_number(m))
		return false;
	if (way->announces && !is_announcement_valid(m))
		return false;
	if (!same_family(&m->client_addr, &m->vip_addr))
		return false;
	if (!(m->ops & OP_OWN))
		return !m->owner_run;
	return m->owner_port && !is_zero_addr(&m->owner_addr) &&
	       !is_zero_addr(&m->via_addr) &&
	       same_family(&m->owner_addr, &m->vip_addr) &&
	       same_family(&m->via_addr, &m->vip_addr);
}

static __always_inline bool has_no_flow(const struct control_message *m)
{
	return is_zero_addr(&m->client_addr) && is_zero_addr(&m->vip_addr) &&
	       !m->client_port && !m->vip_port;
}

static __always_inline bool is_fresh(__u64 time_ns, __u64 clock_ns)
{
	__u64 off = time_ns > clock_ns ? time_ns - clock_ns : clock_ns - time_ns;

	return off <= freshness_ns;
}

static __always_inline bool is_node_of(const struct ip_addr *addr, __u32 tenant)
{
	struct node *node = bpf_map_lookup_elem(&nodes, addr);

	return node && !(node->roles & ROLE_FORMER) &&
	       (node->tenant == tenant || node->tenant == ALL_TENANTS);
}

/* Whether the sender may command this: STATUS_APPLY, NO_SERVICE or DENIED. */
static __always_inline __u8 authorize(const struct control_message *m,
				      const struct flow_key *key, __u32 tenant)
{
	struct service_key sk = { .addr = m->vip_addr, .port = m->vip_port };
	struct service *service;

	service = sk.port ? bpf_map_lookup_elem(&services, &sk) : NULL;
	if (!service)
		return STATUS_NO_SERVICE;
	if (service->tenant != tenant)
		return STATUS_DENIED;
	if (!(m->ops & OP_OWN))
		return STATUS_APPLY;
	if (!owned_by_vip(key, &m->owner_addr, m->owner_port) &&
	    !is_node_of(&m->owner_addr, tenant))
		return STATUS_DENIED;
	return is_node_of(&m->via_addr, tenant) ? STATUS_APPLY : STATUS_DENIED;
}

static __always_inline void view_of(struct flow_view *view, const struct flow *f)
{
	view->state = f->state;
	view->epoch = f->epoch;
	view->owner = f->owner;
	view->via = f->via;
	view->owner_port = f->owner_port;
}

/* Whether the flow already is as the command asks. */
static __always_inline bool is_already(const struct control_message *m,
				       const struct flow_view *view)
{
	if (view->state == FLOW_ABSENT)
		return m->ops == OP_RELEASE;
	if (m->ops == OP_RELEASE)
		return false;
	if (m->ops & OP_BLOCK && view->state != FLOW_BLOCKED)
		return false;
	if (m->ops & OP_UNBLOCK && view->state != FLOW_FORWARD)
		return false;
	return !(m->ops & OP_OWN) || names_owner(m, view);
}

/* Whether no honest sender has reached this epoch; the flow would have it forever. */
static __always_inline bool is_ahead(__u64 epoch, __u64 flow_epoch,
				     __u64 clock_ns)
{
	return epoch > clock_ns && epoch - clock_ns > max_epoch_ahead_ns &&
	       epoch - flow_epoch > max_epoch_step;
}

/*
 * Judges a command by the order of epochs (section 1.3). An announcement in a young term wins
 * over a flow that is not known in that term, and may be ahead of the clock. In a settled one it
 * is compared only.
 */
static __always_inline __u8 judge(const struct control_message *m, __u64 epoch,
				  __u64 clock_ns, const struct flow_view *view,
				  const struct way *way, bool is_known)
{
	bool is_merged = way->admission == ADMIT_MERGE;

	if (is_merged && !is_known)
		return STATUS_APPLY;
	if (way->admission == ADMIT_COMPARE)
		return epoch == view->epoch && is_already(m, view) ?
			       STATUS_OK :
			       STATUS_OLD_TERM;
	if (epoch < view->epoch)
		return STATUS_STALE;
	if (epoch == view->epoch)
		return is_already(m, view) ? STATUS_OK : STATUS_STALE;
	if (is_merged)
		return STATUS_APPLY;
	if (is_ahead(epoch, view->epoch, clock_ns))
		return STATUS_AHEAD;
	if (view->state == FLOW_ABSENT && !(m->ops & (OP_OWN | OP_RELEASE)))
		return STATUS_BAD_REQUEST;
	return STATUS_APPLY;
}

/* Records that the flow is known in the present term. */
static __always_inline void set_generation(struct flow *f, const struct term *t)
{
	f->marks = (f->marks & ~MARK_GENERATION) |
		   t->generation << GENERATION_SHIFT;
}

/* Whether the entry counts in a young term. Tombstones do: only an owner releases a flow. */
static __always_inline bool is_known(const struct flow *f, const struct term *t)
{
	return f->state == FLOW_ABSENT || is_of_term(f, t);
}

/* Applies a command to an entry that is locked, or not yet shared. */
static __always_inline void change(struct flow *f,
				   const struct control_message *m, __u64 epoch,
				   __u64 now_ns, const struct way *way)
{
	bool is_new = f->state == FLOW_ABSENT ||
		      (way->admission == ADMIT_MERGE &&
		       !is_known(f, &way->term));

	if (m->ops == OP_RELEASE) {
		/*
		 * A flow that was absent, or whose owner got a SYN since, is not marked:
		 * a frontend may have the connection.
		 */
		bool released = (f->state != FLOW_ABSENT || is_released(f)) &&
				!(f->marks & MARK_CHALLENGED);

		make_tombstone(f, epoch, now_ns);
		if (released)
			f->marks |= MARK_RELEASED;
		set_generation(f, &way->term);
		return;
	}
	change_begin(f);
	f->marks &= ~(MARK_RELEASED | MARK_CHALLENGED);
	set_generation(f, &way->term);
	if (is_new) {
		f->state = FLOW_FORWARD;
		f->marks &= ~CLOSE_MARKS;
		f->packets[0] = f->packets[1] = 0;
		f->bytes[0] = f->bytes[1] = 0;
	}
	if (m->ops & OP_OWN) {
		f->owner = m->owner_addr;
		f->via = m->via_addr;
		f->owner_port = m->owner_port;
		f->owner_run = m->owner_run;
	}
	if (m->ops & OP_BLOCK)
		f->state = FLOW_BLOCKED;
	if (m->ops & OP_UNBLOCK)
		f->state = FLOW_FORWARD;
	f->epoch = epoch;
	f->last_seen_ns = now_ns;
	change_end(f);
}

/* Inserts a new entry. STATUS_APPLY: another CPU has inserted one. */
static __always_inline __u8 insert(struct control_scratch *s,
				   const struct flow_key *key, __u64 epoch,
				   __u64 now_ns, const struct way *way,
				   struct flow_view *view)
{
	struct flow *fresh = (struct flow *)s->fresh;
	long err;

	__builtin_memset(s->fresh, 0, sizeof(s->fresh));
	change(fresh, &s->request, epoch, now_ns, way);
	err = bpf_map_update_elem(&flows, key, fresh, BPF_NOEXIST);
	if (err == -17 /* EEXIST */)
		return STATUS_APPLY;
	if (err == -16 /* EBUSY */)
		return STATUS_BUSY;
	if (err)
		return STATUS_FULL;
	view_of(view, fresh);
	return STATUS_OK;
}

/* Ends a flow that is over with the settling of the term. Under the lock. */
static __always_inline void forget(struct flow *f, const struct term *t,
				   __u64 now_ns)
{
	if (is_forgotten(f, t) && !is_doomed(f))
		make_tombstone(f, f->epoch, now_ns);
}

/* Judges a command and changes an existing entry in one step. `view` is the result. */
static __always_inline __u8 modify(struct flow *f, __u64 epoch,
				   __u64 now_ns, __u64 clock_ns,
				   const struct way *way, struct flow_view *view,
				   const struct control_scratch *s,
				   const struct sender *sender)
{
	const struct control_message *m = &s->request;
	__u8 status = STATUS_BUSY;

	bpf_spin_lock(&f->lock);
	forget(f, &way->term, now_ns);
	view_of(view, f);
	if (!is_doomed(f))
		status = m->ops ? judge(m, epoch, clock_ns, view, way,
					is_known(f, &way->term)) :
				  STATUS_OK;
	if (status == STATUS_APPLY &&
	    !may_change(s, sender, view, way, is_known(f, &way->term)))
		status = STATUS_FOREIGN;
	if (status == STATUS_APPLY) {
		change(f, m, epoch, now_ns, way);
		view_of(view, f);
		status = STATUS_OK;
	} else if (status == STATUS_OK && way->admission == ADMIT_MERGE) {
		/* A standby keeps what is copied again. */
		f->last_seen_ns = now_ns;
	}
	bpf_spin_unlock(&f->lock);
	return status;
}

static __always_inline void view_now(struct flow *f, const struct term *t,
				     __u64 now_ns, struct flow_view *view)
{
	bpf_spin_lock(&f->lock);
	forget(f, t, now_ns);
	view_of(view, f);
	bpf_spin_unlock(&f->lock);
}

/* The epoch of flows that have no entry; see struct collected. */
static __always_inline __u64 unknown_epoch(void)
{
	__u32 zero = 0;
	struct collected *c = bpf_map_lookup_elem(&collected, &zero);

	return c ? *(volatile __u64 *)&c->epoch : 0;
}

/* Applies an authorized command. `view` is the resulting flow. */
static __always_inline __u8 apply(struct control_scratch *s,
				  const struct flow_key *key, __u64 now_ns,
				  __u64 clock_ns, const struct way *way,
				  struct flow_view *view,
				  const struct sender *sender)
{
	const struct control_message *m = &s->request;
	__u64 epoch = bpf_be64_to_cpu(m->epoch);
	struct flow *f = bpf_map_lookup_elem(&flows, key);
	__u8 status;

	if (way->admission == ADMIT_MERGE &&
	    closing_outranks(key, way->term.number, epoch, m))
		return STATUS_STALE;
	if (!f) {
		view->epoch = unknown_epoch();
		if (!m->ops)
			return STATUS_OK;
		status = judge(m, epoch, clock_ns, view, way, false);
		if (status == STATUS_APPLY &&
		    !may_change(s, sender, view, way, false))
			return STATUS_FOREIGN;
		if (status == STATUS_APPLY)
			status = insert(s, key, epoch, now_ns, way, view);
		if (status != STATUS_APPLY)
			return status;
		f = bpf_map_lookup_elem(&flows, key);
		if (!f)
			return STATUS_BUSY;
	}
	if (s->claim.is_contained && s->claim.has_pass) {
		view_now(f, &way->term, now_ns, view);
		check_pass(s, &view->via, sender);
	}
	return modify(f, epoch, now_ns, clock_ns, way, view, s, sender);
}

#endif
