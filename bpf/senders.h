// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The maps of the control protocol: the keys of senders, and the memory for a command.
 */
#ifndef PRISM_SENDERS_H
#define PRISM_SENDERS_H

#include "maps.h"

/* Two for each node and service that it serves. */
#define MAX_SENDERS 16384
/* Interfaces of one switch. */
#define MAX_INTERFACES 256

struct sender {
	__u64 key[2];		/* SipHash key, as two little-endian words */
	__u32 tenant;
	__u32 zero;
	struct ip_addr addrs[2];	/* the only node with it: IPv4, IPv6; zeros: any */
};

/* A node among those with keys of their own. */
struct node_id {
	struct ip_addr addr;
	__u32 tenant;		/* of the service that the keys are for */
	__u32 zero;
};

/* The keys of a node, as numbers of senders; while the secret changes there are two. */
struct node_keys {
	__u32 key_id[2];	/* 0: none */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SENDERS);
	__type(key, __u32);
	__type(value, struct sender);
} senders SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SENDERS);
	__type(key, struct node_id);
	__type(value, struct node_keys);
} node_keys SEC(".maps");

/* The interfaces that lead to nodes. While there is none, commands are taken from all. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * MAX_INTERFACES);
	__type(key, __u32);
	__type(value, __u32);
} control_interfaces SEC(".maps");

/* The command that a pass is for, as it is signed. */
struct passage {
	struct ip_addr client;
	struct ip_addr vip;
	struct ip_addr via;	/* of the node that is to own the flow */
	__be64 epoch;		/* of its command */
	__be16 client_port;
	__be16 vip_port;
	__u32 zero;
	__be64 before;		/* the pass that was passed on; 0: none */
};

/* What is known of the sender of a command before the flow's entry is locked; see contain.h. */
struct claim {
	__u8 is_contained;
	__u8 is_frontend;	/* the node that is to own the flow */
	__u8 has_pass;
	__u8 is_passed;		/* the pass is that of the flow's owner */
	__u8 names_itself;	/* the owner's address is the sender's, or the service's */
	__u8 zero[3];
};

/* Memory for a command, which is too large for the stack. */
struct control_scratch {
	struct control_message request;
	struct control_message answer;
	struct flow_key key;
	__u32 padding;
	struct claim claim;
	struct pass pass;	/* of the request, if it has one */
	struct passage passage;
	struct node_id passed_by;	/* the owner when the pass was checked */
	__u64 view[6];		/* a struct flow_view: the resulting flow */
	/* A struct flow that is not yet shared. As bytes, because the kernel
	 * allows no lock in a per-CPU map. */
	__u64 fresh[sizeof(struct flow) / 8];
	/* Not 0 while a command is applied. Each CPU handles one packet at a time,
	 * but one test run can preempt another. */
	__u32 busy;
	__u32 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct control_scratch);
} control_scratches SEC(".maps");

#endif
