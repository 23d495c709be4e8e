//! One end of a TCP connection: sequence numbers and queues, enough that bytes
//! really travel in a `TcpState`. Go-back-N, no windows but a fixed one, no
//! congestion control, no handshake (`host` and `client` do that).

use prism_proto::control::FlowKey;
use prism_proto::{Behaviour, NegotiatedOptions, TcpState, Window};

/// Most bytes sent and not acknowledged, small so that queues fill.
const SEND_WINDOW_BYTES: usize = 60;
/// Most bytes in both send queues together.
const SEND_BUFFER_BYTES: usize = 100;
const SEGMENT_BYTES: usize = 23;

#[derive(Clone, Debug, Default)]
pub(crate) struct Segment {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
    pub(crate) data: Vec<u8>,
}

impl Segment {
    /// A host without a socket answers a SYN.
    pub(crate) fn refusal(syn: &Self) -> Self {
        Self {
            ack: syn.seq.wrapping_add(1),
            rst: true,
            ..Self::default()
        }
    }

    pub(crate) fn is_refusal(&self) -> bool {
        self.rst && self.seq == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fin {
    Open,
    Queued,
    Sent,
    Acknowledged,
}

#[derive(Clone, Debug)]
pub(crate) struct Tcp {
    /// First sequence number that the peer has not acknowledged.
    una: u32,
    sent: Vec<u8>,
    unsent: Vec<u8>,
    pub(crate) fin: Fin,
    rcv_nxt: u32,
    pub(crate) received: Vec<u8>,
    pub(crate) peer_closed: bool,
}

impl Tcp {
    /// Right after the handshake.
    pub(crate) fn established(isn: u32, peer_isn: u32) -> Self {
        Self {
            una: isn.wrapping_add(1),
            sent: Vec::new(),
            unsent: Vec::new(),
            fin: Fin::Open,
            rcv_nxt: peer_isn.wrapping_add(1),
            received: Vec::new(),
            peer_closed: false,
        }
    }

    /// The next expected sequence number of the peer.
    pub(crate) fn next_expected(&self) -> u32 {
        self.rcv_nxt
    }

    /// Takes as many bytes as the send buffer has room for.
    pub(crate) fn write(&mut self, bytes: &mut Vec<u8>) {
        let room = SEND_BUFFER_BYTES.saturating_sub(self.sent.len() + self.unsent.len());
        let taken = bytes.len().min(room);
        self.unsent.extend(bytes.drain(..taken));
    }

    /// New segments, as many as the window allows.
    pub(crate) fn transmit(&mut self) -> Vec<Segment> {
        let mut out = Vec::new();
        while !self.unsent.is_empty() && self.sent.len() < SEND_WINDOW_BYTES {
            let room = SEND_WINDOW_BYTES - self.sent.len();
            let n = self.unsent.len().min(room).min(SEGMENT_BYTES);
            let data: Vec<u8> = self.unsent.drain(..n).collect();
            out.push(self.segment(self.sent.len(), data.clone()));
            self.sent.extend(data);
        }
        if self.fin == Fin::Queued && self.unsent.is_empty() {
            self.fin = Fin::Sent;
            out.push(self.fin_segment());
        }
        out
    }

    /// Everything that is not acknowledged, again.
    pub(crate) fn retransmit(&self) -> Vec<Segment> {
        let mut out = Vec::new();
        for (i, chunk) in self.sent.chunks(SEGMENT_BYTES).enumerate() {
            out.push(self.segment(i * SEGMENT_BYTES, chunk.to_vec()));
        }
        if self.fin == Fin::Sent {
            out.push(self.fin_segment());
        }
        out
    }

    pub(crate) fn is_outstanding(&self) -> bool {
        !self.sent.is_empty() || self.fin == Fin::Sent
    }

    pub(crate) fn all_written_is_sent(&self) -> bool {
        self.unsent.is_empty() && self.sent.is_empty()
    }

    pub(crate) fn ack(&self) -> Segment {
        let behind = self.sent.len() + usize::from(self.fin == Fin::Sent);
        self.segment(behind, Vec::new())
    }

    /// Handles a segment; returns whether an acknowledgement is due. An acknowledgement of bytes
    /// that were never sent is a broken connection.
    pub(crate) fn receive(&mut self, segment: &Segment) -> Result<bool, String> {
        self.take_ack(segment.ack)?;
        let behind = self.rcv_nxt.wrapping_sub(segment.seq);
        let len = segment.data.len() as u32;
        if behind > u32::MAX / 2 {
            return Ok(true);
        }
        if behind < len {
            let fresh = &segment.data[behind as usize..];
            self.received.extend(fresh);
            self.rcv_nxt = segment.seq.wrapping_add(len);
        }
        let fin_is_next = segment.seq.wrapping_add(len) == self.rcv_nxt;
        if segment.fin && fin_is_next && !self.peer_closed {
            self.peer_closed = true;
            self.rcv_nxt = self.rcv_nxt.wrapping_add(1);
        }
        Ok(len > 0 || segment.fin)
    }

    fn take_ack(&mut self, ack: u32) -> Result<(), String> {
        let acked = ack.wrapping_sub(self.una) as usize;
        let fin = usize::from(self.fin == Fin::Sent);
        if acked > (u32::MAX / 2) as usize || acked == 0 {
            return Ok(());
        }
        if acked > self.sent.len() + fin {
            return Err(format!("I2: {acked} bytes acknowledged that were not sent"));
        }
        if acked > self.sent.len() {
            self.fin = Fin::Acknowledged;
        }
        self.sent.drain(..acked.min(self.sent.len()));
        self.una = ack;
        Ok(())
    }

    fn segment(&self, offset: usize, data: Vec<u8>) -> Segment {
        Segment {
            seq: self.una.wrapping_add(offset as u32),
            ack: self.rcv_nxt,
            data,
            ..Segment::default()
        }
    }

    fn fin_segment(&self) -> Segment {
        Segment {
            fin: true,
            ..self.segment(self.sent.len(), Vec::new())
        }
    }

    /// The state that `TCP_REPAIR` would read.
    pub(crate) fn save(self, flow: FlowKey) -> TcpState {
        let queued = (self.sent.len() + self.unsent.len()) as u32;
        TcpState {
            remote: flow.client,
            service: flow.vip,
            write_seq: self.una.wrapping_add(queued),
            receive_seq: self.rcv_nxt,
            sent: self.sent,
            unsent: self.unsent,
            received: self.received,
            peer_closed: self.peer_closed,
            options: NegotiatedOptions::default(),
            timestamp: 0,
            window: Window::default(),
            cwnd_segments: 10,
            srtt_us: 20,
            behaviour: Behaviour {
                mss_clamp_bytes: 1460,
                congestion: "cubic".into(),
                nodelay: true,
                keepalive: None,
                user_timeout_ms: 0,
            },
        }
    }

    /// The connection that `TCP_REPAIR` would build.
    pub(crate) fn restore(state: &TcpState) -> Self {
        let queued = (state.sent.len() + state.unsent.len()) as u32;
        Self {
            una: state.write_seq.wrapping_sub(queued),
            sent: state.sent.clone(),
            unsent: state.unsent.clone(),
            fin: Fin::Open,
            rcv_nxt: state.receive_seq,
            received: state.received.clone(),
            peer_closed: state.peer_closed,
        }
    }
}
