//! The files of the page for a browser, which are part of the program.

use prism_process::pages::Page;

const HTML: &str = "text/html; charset=utf-8";

/// Files of the directory `page` with their types.
macro_rules! files {
    ($($name:literal: $content_type:expr,)*) => {
        const FILES: &[(&str, &str, &str)] =
            &[$(($name, $content_type, include_str!(concat!("page/", $name)))),*];
    };
}

files! {
    "index.html": HTML,
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "dom.js": "text/javascript",
    "format.js": "text/javascript",
    "graph.js": "text/javascript",
    "layout.js": "text/javascript",
    "main.js": "text/javascript",
    "panels.js": "text/javascript",
    "s3.js": "text/javascript",
    "servers.js": "text/javascript",
    "sha256.js": "text/javascript",
    "sign.js": "text/javascript",
    "state.js": "text/javascript",
    "store.js": "text/javascript",
    "tiles.js": "text/javascript",
    "topology.js": "text/javascript",
}

/// The file at a path, if there is one. The browser may load nothing but these files, and may
/// connect only to this address and to `store_urls`.
pub fn asset(path: &str, store_urls: &[String]) -> Option<Page> {
    let wanted = match path.strip_prefix('/')? {
        "" => "index.html",
        name => name,
    };
    let (_, content_type, body) = FILES.iter().find(|(name, ..)| *name == wanted)?;
    let mut page = Page::new(content_type, *body);
    if *content_type == HTML {
        page.policy = Some(format!(
            "default-src 'none'; script-src 'self'; style-src 'self'; \
             img-src 'self' data: blob:; connect-src 'self' {}; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            store_urls.join(" ")
        ));
    }
    Some(page)
}
