//! A registry of container images (Distribution) at a backend.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use prism_lab::Lab;

use crate::blobs::stored;
use crate::files::Files;
use crate::objects::{BUCKET, Objects};
use crate::proxies;

/// The URL of a service at its usual port.
pub(crate) fn url(service: IpAddr) -> String {
    match service {
        IpAddr::V4(address) => format!("http://{address}"),
        IpAddr::V6(address) => format!("http://[{address}]"),
    }
}

/// Stores blobs as files.
pub(crate) fn store(files: &Files, blobs: &Objects) -> Result<()> {
    for blob in blobs.all() {
        for (path, bytes) in stored(blob.key, blob.body) {
            let path = files.objects().join(path);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
            fs::write(path, bytes)?;
        }
    }
    Ok(())
}

/// The command of a registry at a backend. `is_behind_prism`: its blobs are objects.
pub(crate) fn command(
    files: &Files,
    lab: &Lab,
    host: &str,
    is_behind_prism: bool,
) -> Result<Command> {
    let storage = if is_behind_prism {
        let credential = lab.credential();
        format!(
            "s3: {{ region: us-east-1, bucket: {BUCKET}, v4auth: true, secure: false,\n    \
             regionendpoint: \"{}\", accesskey: {}, secretkey: {} }}",
            url(lab.service().ip()),
            credential.access_key,
            credential.secret_key
        )
    } else {
        let root = files.objects();
        format!("filesystem: {{ rootdirectory: {} }}", root.display())
    };
    let text = format!(
        "version: 0.1\nlog: {{ level: error, accesslog: {{ disabled: true }} }}\nstorage:\n  \
         {storage}\n  cache: {{ blobdescriptor: inmemory }}\n  \
         maintenance: {{ uploadpurging: {{ enabled: false }} }}\n\
         http: {{ addr: \":{}\", secret: of-all }}\n",
        proxies::port(false)
    );
    let config = files.write(
        &format!("registry-{}-{host}.yml", lab.name()),
        text.as_bytes(),
    )?;
    let mut registry = lab.command(host, "docker-registry")?;
    registry.arg("serve").arg(config);
    Ok(registry)
}
