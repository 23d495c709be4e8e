//! The configuration of a lab whose service has a server and objects.

use prism_config::{ConfigFile, ObjectRoutes, Redirects, Upstream};

/// Gives a service with an upstream objects, which its server may name by these `redirects`.
/// Requests that an S3 client has signed go to the objects.
pub fn add_objects(config: &mut ConfigFile, redirects: &Redirects) {
    let service = config.service.first_mut();
    let upstreams = service.upstream.iter().flat_map(|all| all.iter()).cloned();
    let upstreams = upstreams.map(|upstream| Upstream {
        name: Some("server".into()),
        redirects: Some(redirects.clone()),
        ..upstream
    });
    service.upstream = Some(upstreams.collect::<Vec<_>>().into());
    // A field of every request that S3 clients sign in its header.
    service.objects = Some(ObjectRoutes {
        headers: vec!["x-amz-date".into()],
        ..ObjectRoutes::default()
    });
}
