//! The environment of programs that run on a lab's hosts: endpoints, credentials, authority.

use std::net::SocketAddr;
use std::process::Command;

use crate::family::Family;
use crate::lab::Lab;
use crate::plan::url;
use crate::tls;

/// The variable with the endpoint that the AWS tools use.
const ENDPOINT: &str = "AWS_ENDPOINT_URL";
/// The variables of the user's shell that would lead programs elsewhere.
const FOREIGN: [&str; 4] = [
    "AWS_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_CA_BUNDLE",
];
/// The variables of proxies. They exist in lower and in upper case.
const PROXIES: [&str; 3] = ["http_proxy", "https_proxy", "all_proxy"];

/// Sets the environment of `command`. The endpoint of the AWS tools is the lab's first.
pub(crate) fn set(lab: &Lab, command: &mut Command) {
    for name in PROXIES {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    for name in FOREIGN {
        command.env_remove(name);
    }
    if let Some(file) = lab.ca_file() {
        for name in tls::CA_VARIABLES {
            command.env(name, &file);
        }
    }
    // The last one set is that of the first family.
    for family in [Family::V6, Family::V4] {
        if let Some(endpoint) = endpoint(lab, family) {
            command
                .env(variable(family), &endpoint)
                .env(ENDPOINT, endpoint);
        }
    }
    let credential = lab.credential();
    command
        .env("AWS_ACCESS_KEY_ID", &credential.access_key)
        .env("AWS_SECRET_ACCESS_KEY", &credential.secret_key)
        .env("AWS_DEFAULT_REGION", lab.region())
        .env("AWS_EC2_METADATA_DISABLED", "true");
}

/// The endpoint of `family`: the URL of HTTPS, if it is served.
fn endpoint(lab: &Lab, family: Family) -> Option<String> {
    let is_of = |service: &SocketAddr| Family::of(service.ip()) == family;
    let https = lab.https_services().find(is_of);
    let https = https.map(|service| url("https", service));
    https.or_else(|| Some(url("http", lab.services().find(is_of)?)))
}

/// The variable with the endpoint of `family`.
fn variable(family: Family) -> &'static str {
    match family {
        Family::V4 => "PRISM_ENDPOINT_V4",
        Family::V6 => "PRISM_ENDPOINT_V6",
    }
}
