"use strict";
// Segments of a transcript as subtitles, as the service itself writes them with `response_format` srt or vtt.

const clock = (seconds, mark, hasHours) => {
  const all = Math.round(seconds * 1000), hours = Math.floor(all / 3_600_000);
  const two = (count) => String(Math.floor(count)).padStart(2, "0");
  return `${hasHours || hours ? `${two(hours)}:` : ""}${two((all / 60_000) % 60)}:${two((all / 1000) % 60)}${mark}${String(all % 1000).padStart(3, "0")}`;
};
// An arrow would be taken for times.
const line = ({ text }) => text.trim().replaceAll("-->", "->");

const SUBTITLES = {
  srt: {
    type: "application/x-subrip",
    write: (segments) => segments.map((segment, index) =>
      `${index + 1}\n${clock(segment.start, ",", true)} --> ${clock(segment.end, ",", true)}\n${line(segment)}\n\n`).join(""),
  },
  vtt: {
    type: "text/vtt",
    write: (segments) => `WEBVTT\n\n${segments.map((segment) => `${clock(segment.start, ".")} --> ${clock(segment.end, ".")}\n${line(segment)}\n\n`).join("")}`,
  },
};
