// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Orders of the agent. The agent runs the program `collect` on a buffer of orders; no packet
 * reaches it. Changes are made under the locks of the entries. A walk over the table reads the
 * keys in user space and has each flow judged here: programs that walk a map themselves are of
 * the tracing kind, which hosts may forbid.
 *
 * An entry is deleted in two steps, so that no program locks or writes memory that already
 * belongs to another flow. First a tombstone is doomed here, which is final. Programs then
 * treat it as absent, and do not answer commands for it, so their senders repeat them. The
 * agent waits until every program that may have seen the entry has ended (an RCU grace
 * period), and deletes it.
 */
#ifndef PRISM_COLLECT_H
#define PRISM_COLLECT_H

#include "flow.h"

/* Offset of the orders: behind an Ethernet header, aligned. */
#define ORDERS_AT 16
#define MAX_ORDERS 32

enum order_kind {
	ORDER_NONE = 0,
	ORDER_EXPIRE = 1,	/* an idle or long blocked flow becomes a tombstone */
	ORDER_DOOM = 2,		/* a tombstone may be deleted */
	ORDER_RESET = 3,	/* as ORDER_EXPIRE; the agent then resets the client */
	ORDER_NAME_DUE = 4,	/* nothing changes; the answer is the order that is due */
};

/* One order. A change is carried out only if the flow is as the agent saw it. */
struct order {
	struct flow_key key;
	__u8 kind;
	__u8 done;		/* answer: 1 if it was carried out */
	__u16 zero;
	__u64 epoch;		/* as seen */
	__u64 last_seen_ns;	/* as seen */
	__u32 next_seq;		/* answer to ORDER_RESET, if it is known */
	__u32 has_next_seq;
};
_Static_assert(sizeof(struct order) == 64, "order");

/* The end of the owner's run, an enum run_end; 0: no end is known. */
static __always_inline __u32 owner_end(const struct flow *f)
{
	struct run_key key = { .node = f->via, .run = f->owner_run };
	struct ended_run *ended;

	if (!key.run)
		return 0;
	ended = bpf_map_lookup_elem(&ended_runs, &key);
	return ended ? ended->end : 0;
}

/*
 * The order that a flow is due for, read without its lock; ORDER_NONE: none. A blocked flow
 * moves between two hosts. It has a limit of its own, even if its owner's run has ended.
 */
static __always_inline __u8 due(const struct flow *f, __u64 now_ns)
{
	__u8 kind = ORDER_EXPIRE;
	__u64 limit_ns = idle_ns;
	__u32 end = 0;

	if (is_doomed(f))
		return ORDER_DOOM;
	if (f->state == FLOW_FORWARD)
		end = owner_end(f);
	if (f->state == FLOW_ABSENT) {
		kind = ORDER_DOOM;
		limit_ns = tombstone_ns;
	} else if (f->state == FLOW_BLOCKED) {
		kind = ORDER_RESET;
		limit_ns = blocked_ns;
	} else if (end == RUN_DIED) {
		if (!(f->marks & MARK_CLOSED))
			kind = ORDER_RESET;
		limit_ns = died_ns;
	} else if (end == RUN_LEFT && left_ns < idle_ns) {
		limit_ns = left_ns;
	}
	if (now_ns < f->last_seen_ns || now_ns - f->last_seen_ns < limit_ns)
		return ORDER_NONE;
	return kind;
}

/* Counts a flow that is read without its lock. */
static __always_inline void count_flow(const struct flow *f)
{
	struct ip_addr node = {};
	__u64 one = 1;
	__u64 *flows_of_node;

	if (f->state != FLOW_ABSENT)
		node = f->via;
	flows_of_node = bpf_map_lookup_elem(&census, &node);
	if (flows_of_node)
		*flows_of_node += 1;
	else
		bpf_map_update_elem(&census, &node, &one, BPF_NOEXIST);
}

/* Answers the order that a flow is due for, as this walk sees it, and counts the flow. */
static __always_inline bool answer_due(const struct flow *f, struct order *o)
{
	o->kind = due(f, bpf_ktime_get_ns());
	o->epoch = f->epoch;
	o->last_seen_ns = f->last_seen_ns;
	count_flow(f);
	return true;
}

static __always_inline bool expire(struct flow *f, struct order *o)
{
	__u64 now_ns = bpf_ktime_get_coarse_ns();
	bool done = false;

	bpf_spin_lock(&f->lock);
	o->next_seq = f->next_seq;
	o->has_next_seq = f->packets[TO_CLIENT] != 0;
	if (!is_doomed(f) && f->state != FLOW_ABSENT && f->epoch == o->epoch &&
	    f->last_seen_ns == o->last_seen_ns) {
		make_tombstone(f, f->epoch, now_ns);
		done = true;
	}
	bpf_spin_unlock(&f->lock);
	if (done)
		count(o->kind == ORDER_RESET ? COUNTER_flow_reset :
					       COUNTER_flow_expired);
	return done;
}

/* Makes `epoch` the least epoch of unknown flows. */
static __always_inline void raise_collected_epoch(__u64 epoch)
{
	__u32 zero = 0;
	struct collected *c = bpf_map_lookup_elem(&collected, &zero);

	if (!c)
		return;
	bpf_spin_lock(&c->lock);
	if (epoch > c->epoch)
		c->epoch = epoch;
	bpf_spin_unlock(&c->lock);
}

static __always_inline bool doom(struct flow *f, const struct order *o)
{
	bool done = false;
	bool before;

	bpf_spin_lock(&f->lock);
	before = is_doomed(f);
	if (f->state == FLOW_ABSENT && f->epoch == o->epoch &&
	    f->last_seen_ns == o->last_seen_ns) {
		f->marks |= MARK_DOOMED;
		done = true;
	}
	bpf_spin_unlock(&f->lock);
	/* Commands for the entry are not answered until the agent deletes it. */
	if (done)
		raise_collected_epoch(o->epoch);
	/* An agent that died may have doomed it before; it is still counted once. */
	if (done && !before)
		count(COUNTER_flow_collected);
	return done;
}

static __always_inline bool carry_out(struct order *o)
{
	struct flow *f = bpf_map_lookup_elem(&flows, &o->key);

	if (!f)
		return false;
	if (o->kind == ORDER_NAME_DUE)
		return answer_due(f, o);
	if (o->kind == ORDER_EXPIRE || o->kind == ORDER_RESET)
		return expire(f, o);
	return o->kind == ORDER_DOOM && doom(f, o);
}

/* Global, so that it is verified once, instead of for each order of a buffer. */
__noinline int collect_one(struct __sk_buff *skb, __u32 index)
{
	__u32 at = ORDERS_AT + index * sizeof(struct order);
	struct order o;

	if (bpf_skb_load_bytes(skb, at, &o, sizeof(o)))
		return 0;
	o.done = carry_out(&o);
	bpf_skb_store_bytes(skb, at, &o, sizeof(o), 0);
	return 1;
}

#endif
