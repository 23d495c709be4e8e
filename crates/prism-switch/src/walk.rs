//! The agent's walks over the flow table. A walk counts the flows, and yields the orders that
//! they are due for.

use std::io::BufReader;
use std::sync::Arc;

use libbpf_rs::Iter;

use crate::census::{self, LastCensus};
use crate::error::{KernelError, kernel};
use crate::layout::{ORDER_BYTES, next_record};
use crate::load::Switch;

/// Most orders of one step. They take 1 to 2 µs each, some 200 ms in all, beside the walk.
const MAX_STEP_ORDERS: usize = 131_072;

pub(crate) type Order = [u8; ORDER_BYTES];

/// One walk after the other.
pub(crate) struct Walks<'a> {
    switch: &'a Switch,
    current: Option<BufReader<Iter>>,
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
        while orders.len() < MAX_STEP_ORDERS {
            match next_record(&mut walk).map_err(kernel("walk the flow table"))? {
                Some(order) => orders.push(order),
                None => {
                    let counted = census::read(&self.switch.skel.maps.census)?;
                    self.census.set(counted);
                    return Ok(orders);
                }
            }
        }
        self.current = Some(walk);
        Ok(orders)
    }

    fn start(&self) -> Result<BufReader<Iter>, KernelError> {
        census::clear(&self.switch.skel.maps.census)?;
        let iter = Iter::new(&self.switch.due_flows).map_err(kernel("start a walk"))?;
        Ok(BufReader::with_capacity(64 * ORDER_BYTES, iter))
    }
}
