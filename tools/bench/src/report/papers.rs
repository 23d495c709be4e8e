//! Values of the two papers, from their text and tables; nothing is read off a plot.
//!
//! NSDI'21 is "Prism: Proxies without the Pain", SoCC'17 is "Prism: A Proxy Architecture for
//! Datacenter Networks". Their machines differ (10 Gbit/s links, six logical servers), so only
//! ratios compare.

/// Lines of result, name, value and place.
const PAPERS: &str = include_str!("papers.txt");

/// Name, value and place of each of the papers' values for `result`.
pub(super) fn values(result: &str) -> impl Iterator<Item = [&'static str; 3]> {
    let lines = PAPERS.lines().map(|line| line.split(" | "));
    lines.filter_map(move |mut fields| {
        let is_wanted = fields.next() == Some(result);
        let values = [fields.next()?, fields.next()?, fields.next()?];
        is_wanted.then_some(values)
    })
}
