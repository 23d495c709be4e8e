//! The form in which the tables of the file are written down as structs.

/// Makes a table of the file a struct. Each field stands with its documentation, its type, and
/// behind `=` its default. A field without `=` has the default of its type.
macro_rules! section {
    (
        $(#[$about:meta])* pub struct $name:ident;
        $($(#[$doc:meta])* pub $field:ident: $kind:ty $(= $default:expr)?,)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: section!(@ $($default)?),)* }
            }
        }
    };
    (@) => { Default::default() };
    (@ $default:expr) => { $default };
}
