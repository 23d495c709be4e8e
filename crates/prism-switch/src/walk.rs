//! The agent's walks over the flow table, and its orders. A walk reads the keys in batches, and
//! has the program `collect` (`bpf/collect.h`) judge each flow. It counts the flows, and yields
//! the orders that they are due for.

use std::mem::offset_of;
use std::sync::Arc;

use libbpf_rs::{BatchedMapIter, MapCore, MapFlags, ProgramInput};

use crate::census::{self, LastCensus};
use crate::error::{KernelError, kernel};
use crate::layout::{Block, MAX_ORDERS, ORDER_BYTES, ORDERS_AT, array_at};
use crate::load::Switch;
use crate::skel::types;

/// Most orders of one step. They take 1 to 2 µs each, some 200 ms in all, beside the walk.
const MAX_STEP_ORDERS: usize = 131_072;
/// Keys of one read of the table. It has to hold the largest bucket of the table's hash.
pub(crate) const BATCH_KEYS: u32 = 4096;

pub(crate) type Order = [u8; ORDER_BYTES];

/// One walk after the other.
pub(crate) struct Walks<'a> {
    switch: &'a Switch,
    current: Option<BatchedMapIter<'a>>,
    pub(crate) census: Arc<LastCensus>,
}

impl<'a> Walks<'a> {
    pub(crate) fn new(switch: &'a Switch) -> Self {
        Self {
            switch,
            current: None,
            census: Arc::default(),
        }
    }

    /// At most [`MAX_STEP_ORDERS`] of the current walk, which starts if there is none.
    pub(crate) fn next_orders(&mut self) -> Result<Vec<Order>, KernelError> {
        let mut walk = match self.current.take() {
            Some(walk) => walk,
            None => self.start()?,
        };
        let mut orders = Vec::new();
        while orders.len() + MAX_ORDERS <= MAX_STEP_ORDERS {
            let keys = walk.by_ref().take(MAX_ORDERS);
            let questions: Vec<Order> = keys.map(|(key, _)| question(&key)).collect();
            if questions.is_empty() {
                let counted = census::read(&self.switch.skel.maps.census)?;
                self.census.set(counted);
                return Ok(orders);
            }
            let judged = carry_out(self.switch, &questions)?.into_iter();
            orders.extend(judged.filter(|order| kind(order) != types::order_kind::ORDER_NONE));
        }
        self.current = Some(walk);
        Ok(orders)
    }

    fn start(&self) -> Result<BatchedMapIter<'a>, KernelError> {
        census::clear(&self.switch.skel.maps.census)?;
        let flows = &self.switch.skel.maps.flows;
        let walk = flows.lookup_batch(BATCH_KEYS, MapFlags::ANY, MapFlags::ANY);
        walk.map_err(kernel("start a walk"))
    }
}

/// Has at most [`MAX_ORDERS`] orders carried out. Returns the ones that were, with their
/// answers.
pub(crate) fn carry_out(switch: &Switch, orders: &[Order]) -> Result<Vec<Order>, KernelError> {
    let mut buffer = vec![0; ORDERS_AT];
    buffer.extend(orders.iter().flatten());
    let mut out = vec![0; buffer.len()];
    let input = ProgramInput {
        data_in: Some(&buffer),
        data_out: Some(&mut out),
        ..Default::default()
    };
    let program = &switch.skel.progs.collect;
    program
        .test_run(input)
        .map_err(kernel("carry out orders"))?;
    let answers = out.split_off(ORDERS_AT);
    let at = offset_of!(types::order, done);
    let answers = answers.chunks_exact(ORDER_BYTES);
    let done = answers.filter(|order| array_at::<1>(order, at) == [1]);
    Ok(done.map(|order| array_at(order, 0)).collect())
}

pub(crate) fn kind(order: &Order) -> types::order_kind {
    let [kind] = array_at::<1>(order, offset_of!(types::order, kind));
    types::order_kind(kind.into())
}

/// The question for what a flow is due.
fn question(key: &[u8]) -> Order {
    let name_due = types::order_kind::ORDER_NAME_DUE.0.to_le_bytes();
    Block::new()
        .put(offset_of!(types::order, key), key)
        .put(offset_of!(types::order, kind), &name_due[..1])
        .bytes()
}
