//! JSON that has one meaning. Serde alone takes a list for an object, and `null` for a field that
//! is missing; both are errors here. A repeated field is one already.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    Deserialize, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};

/// A text, a truth value or an object: neither a list nor `null`.
#[derive(Debug, Default)]
pub(super) struct Single<T>(pub(super) T);

/// A [`Single`], or a list of at least one.
#[derive(Debug)]
pub(super) struct OneOrMany<T>(pub(super) Vec<T>);

/// Reads a field that may be missing, but may not be `null`.
pub(super) fn present<'de, D, T>(field: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(field).map(Some)
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Single<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_any(SingleVisitor(PhantomData)).map(Self)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_any(ManyVisitor(PhantomData)).map(Self)
    }
}

struct SingleVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for SingleVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, true, false or an object")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<T, E> {
        T::deserialize(value.into_deserializer())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::deserialize(text.into_deserializer())
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(object))
    }
}

struct ManyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ManyVisitor<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, true, false, an object or a list")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Vec<T>, E> {
        Ok(vec![SingleVisitor(PhantomData).visit_bool(value)?])
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
        Ok(vec![SingleVisitor(PhantomData).visit_str(text)?])
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Vec<T>, A::Error> {
        Ok(vec![SingleVisitor(PhantomData).visit_map(object)?])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut many = Vec::new();
        while let Some(Single(one)) = list.next_element()? {
            many.push(one);
        }
        if many.is_empty() {
            return Err(A::Error::custom("a list is empty"));
        }
        Ok(many)
    }
}
