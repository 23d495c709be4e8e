// Plays a film that an application guards, as a user of it does: play.mjs URL.
//
// Ends with status 1 and a reason if the film does not play, or plays for a stranger.

import { Browser } from "../../../../../tools/page/browser.mjs";

const base = process.argv[2];
const film = `${base}/file/film.webm`;
const browser = await Browser.start(["--autoplay-policy=no-user-gesture-required"]);
const check = (isGood, what) => {
  if (!isGood) throw new Error(what);
};
try {
  const tab = await browser.tab();
  const answers = [];
  browser.on("Network.responseReceived", ({ response }) => {
    if (response.url !== film) return;
    const fields = Object.entries(response.headers);
    const range = fields.find(([name]) => name.toLowerCase() === "content-range");
    answers.push({ status: response.status, range: range?.[1] });
  });
  await tab.send("Network.enable");
  await tab.open(`${base}/`);
  await tab.wait("the application", () => document.body.textContent.includes("application"));
  const ask = async (url, range) =>
    (await fetch(url, { cache: "no-store", headers: range ? { Range: range } : {} })).status;
  check((await tab.call(ask, film)) === 403, "a stranger gets the film");
  check((await tab.call(ask, film, "bytes=0-99")) === 403, "a stranger gets a part of it");
  await tab.call(() => (document.cookie = "login=yes"));
  const play = (url) =>
    new Promise((resolve, reject) => {
      const video = document.createElement("video");
      const seen = {};
      video.muted = true;
      video.onerror = () => reject(new Error(`the video: ${video.error.message}`));
      video.onloadedmetadata = () => {
        seen.duration = video.duration;
        seen.width = video.videoWidth;
        video.currentTime = video.duration - 1;
      };
      video.onseeked = () => video.play();
      video.onended = () => resolve({ ...seen, ended: video.currentTime });
      video.src = url;
      document.body.append(video);
    });
  const seen = await tab.call(play, film);
  check(seen.width === 320 && seen.duration > 5, `another film: ${JSON.stringify(seen)}`);
  check(Math.abs(seen.ended - seen.duration) < 1, `it did not end: ${JSON.stringify(seen)}`);
  const parts = answers.filter(({ status, range }) => status === 206 && range);
  check(parts.length >= 2, `it was not read by ranges: ${JSON.stringify(answers)}`);
  await tab.call(() => (document.cookie = "login=; Max-Age=0"));
  check((await tab.call(ask, film, "bytes=0-99")) === 403, "who has left gets the film");
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  await browser.close();
}
