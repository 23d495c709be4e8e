//! keepalived on the hosts of a pair of switches, and on the frontends of host mode. It moves the
//! addresses by VRRP. Its file is an example of `contrib`, with the segments of the lab.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use rustix::process::Signal;

use crate::error::LabError;
use crate::files;
use crate::lab::Lab;
use crate::plan::{HostLink, LabPlan};
use crate::process::{ProcessId, in_namespaces};
use crate::state::HealthCondition;
use crate::state::write_private;
use crate::tool::in_namespace;

pub(crate) const PROGRAM: &str = "keepalived";
/// The file of a pair of switches.
const OF_SWITCHES: &str = include_str!("../../../contrib/keepalived/keepalived.conf");
/// The file of two frontends in host mode.
const OF_FRONTENDS: &str = include_str!("../../../contrib/keepalived/host-mode.conf");
/// The priority of each host.
const PRIORITIES: [u8; 2] = [100, 90];

impl Lab {
    /// Starts keepalived on a switch, unless it runs there.
    pub(crate) fn start_keepalived(&mut self, switch: &str) -> Result<(), LabError> {
        if !processes(&self.state.plan, switch).is_empty() {
            return Ok(());
        }
        let directory = self.name().state_dir();
        let file = |end: &str| directory.join(format!("{switch}.{end}"));
        let mut movers = self.state.plan.movers().into_iter();
        let number = movers.position(|mover| mover == switch).unwrap_or(0);
        let text = render(&self.state.plan, number, self.state.health);
        write_private(&file("keepalived.conf"), text.as_bytes())?;
        let mut command = in_namespace(&self.namespace(switch)?, PROGRAM);
        command.args(["--dont-fork", "--vrrp", "--log-console", "--no-syslog"]);
        command.arg("--use-file").arg(file("keepalived.conf"));
        for (option, end) in [("--pid", "keepalived.pid"), ("--vrrp_pid", "vrrp.pid")] {
            // A killed one has left its number, which may be another process's by now.
            let _ = std::fs::remove_file(file(end));
            command.arg(option).arg(file(end));
        }
        let path = files::log_path(self.name(), &format!("{switch}.keepalived"));
        let log = OpenOptions::new().create(true).append(true).open(&path);
        let log = log.map_err(LabError::io(format!("opening {}", path.display())))?;
        let errors = log
            .try_clone()
            .map_err(LabError::io("duplicating a file descriptor"))?;
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(LabError::io(format!("starting {PROGRAM} on {switch}")))?;
        self.children.push(child);
        Ok(())
    }
}

/// Ends keepalived on a switch by SIGKILL. The addresses stay.
pub(crate) fn kill(plan: &LabPlan, switch: &str) {
    for process in processes(plan, switch) {
        process.signal(Signal::KILL);
    }
}

fn processes(plan: &LabPlan, switch: &str) -> Vec<ProcessId> {
    let all = in_namespaces(&[plan.name.namespace_path(switch)]);
    let is_keepalived = |process: &ProcessId| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid));
        name.is_ok_and(|name| name.trim_end() == PROGRAM)
    };
    all.into_iter().filter(is_keepalived).collect()
}

/// The example with the segments of a lab, for the host with this number.
fn render(plan: &LabPlan, number: usize, health: HealthCondition) -> String {
    let (example, links) = if plan.is_host_mode() {
        (OF_FRONTENDS, plan.links.get(..1).unwrap_or_default())
    } else {
        (OF_SWITCHES, plan.links.as_slice())
    };
    let from = example.find("global_defs").unwrap_or(0);
    let to = ["vrrp_sync_group", "vrrp_instance"].map(|word| example.find(&format!("\n{word} ")));
    let to = to.into_iter().flatten().min().unwrap_or(example.len());
    let head = example.get(from..to).unwrap_or_default();
    let head = match health {
        HealthCondition::Serving => head.to_owned(),
        // The lab's own programs have no such page.
        HealthCondition::Running => set(head, "script", "/bin/true"),
    };
    let names: Vec<&str> = links.iter().map(|link| link.host.as_str()).collect();
    let group = fill(block(example, "vrrp_sync_group"), "group", &names);
    let instance = block(example, "vrrp_instance");
    let instances = links.iter().map(|link| {
        let (own, other) = addresses(plan, link);
        let text = set(instance, "vrrp_instance", &format!("{} {{", link.host));
        let interface = if plan.is_host_mode() {
            "eth0"
        } else {
            &link.host
        };
        let text = set(&text, "interface", interface);
        let priority = PRIORITIES.get(number).copied().unwrap_or(1);
        let text = set(&text, "priority", &priority.to_string());
        let text = fill(&text, "virtual_ipaddress", &own);
        fill(&text, "virtual_ipaddress_excluded", &other)
    });
    let instances: Vec<String> = instances.collect();
    format!("{head}\n{group}\n{}", instances.join("\n"))
}

/// The first address of the gateway of a link, and the other addresses that move with it. The
/// control addresses move with those of the first link.
fn addresses(plan: &LabPlan, link: &HostLink) -> (Vec<String>, Vec<String>) {
    let is_first = plan.links.first() == Some(link);
    let moved = plan.moved();
    let is_of_all = |device: &str| is_first && ["lo", "eth0"].contains(&device);
    let moved = moved.filter(|(_, device)| *device == link.host || is_of_all(device));
    let line = |(address, device): (String, &str)| format!("{address} dev {device}");
    let (gateways, control): (Vec<_>, Vec<_>) = moved.partition(|(_, device)| *device != "lo");
    let mut all = gateways.into_iter().chain(control).map(line);
    let first = all.next().into_iter().collect();
    (first, all.collect())
}

/// The first block of an example that begins with this word; nothing if there is none.
fn block<'a>(example: &'a str, word: &str) -> &'a str {
    const END: &str = "\n}\n";
    let from = example.find(&format!("\n{word} "));
    let from = from.map_or(example.len(), |at| at + 1);
    let text = example.get(from..).unwrap_or_default();
    let end = text.find(END).map_or(text.len(), |at| at + END.len());
    text.get(..end).unwrap_or_default()
}

/// `text` with `value` behind the word that begins a line.
fn set(text: &str, word: &str, value: &str) -> String {
    let lines = text.lines().map(|line| {
        let indent = line.len() - line.trim_start().len();
        if line.split_whitespace().next() == Some(word) {
            format!("{:indent$}{word} {value}\n", "")
        } else {
            format!("{line}\n")
        }
    });
    lines.collect()
}

/// `text` with these lines as the content of an inner block.
fn fill(text: &str, word: &str, content: &[impl AsRef<str>]) -> String {
    let begin = format!("    {word} {{\n");
    let Some((before, rest)) = text.split_once(&begin) else {
        return text.to_owned();
    };
    let after = rest.find("    }\n").and_then(|end| rest.get(end..));
    let content = content.iter();
    let content: String = content
        .map(|line| format!("        {}\n", line.as_ref()))
        .collect();
    format!("{before}{begin}{content}{}", after.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use std::path::PathBuf;

    use super::*;
    use crate::family::Families;
    use crate::files::{METRICS_PORT, SWITCH_METRICS_PORT};
    use crate::mode::Mode;
    use crate::spec::LabSpec;

    #[test]
    fn the_example_becomes_the_file_of_a_lab() {
        let mut spec = LabSpec::new("pair".parse().unwrap(), PathBuf::new());
        (spec.switches, spec.family, spec.backends) = (2, Families::Dual, 1);
        let plan = spec.plan();
        let text = render(&plan, 1, HealthCondition::Running);
        for foreign in [
            "eth0",
            "192.0.2",
            "2001:db8",
            "10.0.1.",
            "curl ",
            "priority 100",
        ] {
            assert!(!text.contains(foreign), "{foreign} in {text}");
        }
        for link in ["client", "fe0", "be0"] {
            assert!(
                text.contains(&format!("vrrp_instance {link} {{\n")),
                "{text}"
            );
            assert!(text.contains(&format!("    interface {link}\n")), "{text}");
        }
        for (address, device) in plan.moved() {
            let line = format!("        {address} dev {device}\n");
            assert_eq!(text.matches(&line).count(), 1, "{line} in {text}");
        }
        assert!(text.contains("    script /bin/true\n"), "{text}");
        let text = render(&plan, 0, HealthCondition::Serving);
        assert!(
            text.contains("/-/ready\"\n") && text.contains("priority 100"),
            "{text}"
        );
    }

    #[test]
    fn a_frontend_of_host_mode_has_its_agent_and_its_node_checked() {
        let mut spec = LabSpec::new("pair".parse().unwrap(), PathBuf::new());
        (spec.mode, spec.frontends, spec.family) = (Mode::Host, 2, Families::Dual);
        let plan = spec.plan();
        let text = render(&plan, 1, HealthCondition::Serving);
        assert!(text.contains("priority 90"), "{text}");
        for port in [METRICS_PORT, SWITCH_METRICS_PORT] {
            let page = format!("http://localhost:{port}/-/ready\"\n");
            assert_eq!(text.matches(&page).count(), 1, "{text}");
        }
        assert_eq!(text.matches("vrrp_instance ").count(), 1, "{text}");
        for (address, device) in plan.moved() {
            let line = format!("        {address} dev {device}\n");
            assert_eq!(text.matches(&line).count(), 1, "{line} in {text}");
        }
        for foreign in ["192.0.2", "2001:db8"] {
            assert!(!text.contains(foreign), "{foreign} in {text}");
        }
    }
}
