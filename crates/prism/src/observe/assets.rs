//! The files of the page for a browser, which are part of the program.

use super::Page;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The file at a path, if there is one. The browser may load nothing but these files, and may
/// connect only to this address and to `store_urls`.
pub(crate) fn asset(path: &str, store_urls: &[String]) -> Option<Page> {
    let (content_type, body) = match path {
        "/" => (HTML, include_str!("page/index.html")),
        _ => return None,
    };
    let mut page = Page::new(content_type, body);
    if content_type == HTML {
        page.policy = Some(format!(
            "default-src 'none'; script-src 'self'; style-src 'self'; \
             img-src 'self' data: blob:; connect-src 'self' {}; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            store_urls.join(" ")
        ));
    }
    Some(page)
}
