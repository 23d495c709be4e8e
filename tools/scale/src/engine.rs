//! Jobs that pass queues, in simulated nanoseconds. Equal seeds give equal runs.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The longest part of a transfer that a link sends at once. Transfers of one link share it.
const PIECE_BYTES: u64 = 64 << 10;
/// Bytes of data in a full segment with timestamps, at an MTU of 1,500.
const SEGMENT_BYTES: u64 = 1_448;
/// Headers of a segment on the wire: Ethernet 14, IPv4 20, TCP with timestamps 32.
const HEADERS_BYTES: u64 = 66;

/// The segments of so many bytes.
pub(crate) fn segments(bytes: u64) -> u64 {
    bytes.div_ceil(SEGMENT_BYTES)
}

/// Bytes on the wire of so many bytes of a TCP connection.
pub(crate) fn on_the_wire(bytes: u64) -> u64 {
    bytes + HEADERS_BYTES * segments(bytes)
}

/// One station that a job visits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum JobStep {
    /// Work of a thread, which also needs a core of the thread's machine.
    Work { thread: usize, ns: u64 },
    /// A transfer of bytes over a link.
    Send { link: usize, bytes: u64 },
}

/// Cores and the threads that wait for one, in order.
#[derive(Debug, Default)]
struct Machine {
    idle_cores: usize,
    ready: VecDeque<usize>,
    busy_ns: u64,
    cores: usize,
}

/// A thread and the jobs that wait for it.
#[derive(Debug, Default)]
struct Thread {
    machine: usize,
    jobs: VecDeque<usize>,
    is_scheduled: bool,
}

/// A link that sends one piece after the other.
#[derive(Debug, Default)]
struct SimulatedLink {
    bit_s: f64,
    free_ns: u64,
    busy_ns: u64,
}

/// A job on its way through its steps.
#[derive(Debug, Default)]
struct Job {
    steps: VecDeque<JobStep>,
    began_ns: u64,
}

/// The reason for which the engine stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The timer with this number has fired.
    Timer(usize),
    /// The job with this number has ended, after so many nanoseconds.
    End { job: usize, took_ns: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Timer(usize),
    Arrive(usize),
    Done { thread: usize, job: usize },
}

/// Machines, threads, links and jobs.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    now_ns: u64,
    order: u64,
    due: BinaryHeap<Reverse<(u64, u64, Due)>>,
    machines: Vec<Machine>,
    threads: Vec<Thread>,
    links: Vec<SimulatedLink>,
    jobs: Vec<Job>,
    ended: Vec<usize>,
}

#[allow(
    clippy::indexing_slicing,
    reason = "the numbers of machines, threads, links and jobs come from this engine"
)]
impl Engine {
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// A machine of so many cores, at the returned number.
    pub(crate) fn add_machine(&mut self, cores: usize) -> usize {
        self.machines.push(Machine {
            idle_cores: cores,
            cores,
            ..Machine::default()
        });
        self.machines.len() - 1
    }

    /// A thread of this machine.
    pub(crate) fn add_thread(&mut self, machine: usize) -> usize {
        self.threads.push(Thread {
            machine,
            ..Thread::default()
        });
        self.threads.len() - 1
    }

    /// A link with this speed.
    pub(crate) fn add_link(&mut self, bit_s: f64) -> usize {
        self.links.push(SimulatedLink {
            bit_s,
            ..SimulatedLink::default()
        });
        self.links.len() - 1
    }

    /// The share of the time since the start in which the machine's cores were busy.
    pub(crate) fn machine_use(&self, machine: usize) -> f64 {
        let machine = &self.machines[machine];
        machine.busy_ns as f64 / (self.now_ns.max(1) as f64 * machine.cores as f64)
    }

    /// The same of a link.
    pub(crate) fn link_use(&self, link: usize) -> f64 {
        let link = &self.links[link];
        let ahead_ns = link.free_ns.saturating_sub(self.now_ns);
        link.busy_ns.saturating_sub(ahead_ns) as f64 / self.now_ns.max(1) as f64
    }

    /// Begins a job now.
    pub(crate) fn begin(&mut self, steps: impl IntoIterator<Item = JobStep>) -> usize {
        let began_ns = self.now_ns;
        let steps = steps.into_iter().collect();
        let job = self.ended.pop().unwrap_or_else(|| {
            self.jobs.push(Job::default());
            self.jobs.len() - 1
        });
        self.jobs[job] = Job { steps, began_ns };
        self.at(began_ns, Due::Arrive(job));
        job
    }

    /// Sets a timer.
    pub(crate) fn set_timer(&mut self, after_ns: u64, number: usize) {
        self.at(self.now_ns + after_ns, Due::Timer(number));
    }

    fn at(&mut self, ns: u64, due: Due) {
        self.order += 1;
        self.due.push(Reverse((ns, self.order, due)));
    }

    /// Goes on to the next timer or end of a job.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        while let Some(Reverse((ns, _, due))) = self.due.pop() {
            self.now_ns = ns;
            let job = match due {
                Due::Timer(number) => return Some(Event::Timer(number)),
                Due::Arrive(job) => job,
                Due::Done { thread, job } => {
                    self.leave_thread(thread);
                    job
                }
            };
            if !self.advance(job) {
                self.ended.push(job);
                let took_ns = ns - self.jobs[job].began_ns;
                return Some(Event::End { job, took_ns });
            }
        }
        None
    }

    /// Takes the job to its next station; `false` when it has passed all.
    fn advance(&mut self, job: usize) -> bool {
        match self.jobs[job].steps.pop_front() {
            None => return false,
            Some(JobStep::Work { thread, ns }) => {
                self.jobs[job]
                    .steps
                    .push_front(JobStep::Work { thread, ns });
                self.threads[thread].jobs.push_back(job);
                self.schedule(thread);
            }
            Some(JobStep::Send { link, bytes }) => {
                let piece = bytes.min(PIECE_BYTES);
                if bytes > piece {
                    let bytes = bytes - piece;
                    self.jobs[job]
                        .steps
                        .push_front(JobStep::Send { link, bytes });
                }
                let station = &mut self.links[link];
                let takes_ns = (on_the_wire(piece) as f64 * 8e9 / station.bit_s) as u64;
                station.free_ns = station.free_ns.max(self.now_ns) + takes_ns;
                station.busy_ns += takes_ns;
                let free_ns = station.free_ns;
                self.at(free_ns, Due::Arrive(job));
            }
        }
        true
    }

    /// Has the thread wait for a core if it has work.
    fn schedule(&mut self, thread: usize) {
        let station = &mut self.threads[thread];
        if !station.is_scheduled && !station.jobs.is_empty() {
            station.is_scheduled = true;
            let machine = station.machine;
            self.machines[machine].ready.push_back(thread);
            self.run_ready(machine);
        }
    }

    /// Gives idle cores to the threads that wait, each for one job.
    fn run_ready(&mut self, machine: usize) {
        while self.machines[machine].idle_cores > 0
            && let Some(thread) = self.machines[machine].ready.pop_front()
            && let Some(job) = self.threads[thread].jobs.pop_front()
        {
            let ns = match self.jobs[job].steps.pop_front() {
                Some(JobStep::Work { ns, .. }) => ns,
                _ => 0,
            };
            self.machines[machine].idle_cores -= 1;
            self.machines[machine].busy_ns += ns;
            self.at(self.now_ns + ns, Due::Done { thread, job });
        }
    }

    fn leave_thread(&mut self, thread: usize) {
        let machine = self.threads[thread].machine;
        self.threads[thread].is_scheduled = false;
        self.machines[machine].idle_cores += 1;
        self.schedule(thread);
        self.run_ready(machine);
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
