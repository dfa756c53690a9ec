"use strict";
// The address of a conversation: `#/chat/ID`, the part of an address that a browser sends to no service.

const ADDRESS = "#/chat/";

/** Return the id of the conversation that the address names, or null: that of a new chat. */
const addressed = () => (location.hash.startsWith(ADDRESS) ? decoded(location.hash.slice(ADDRESS.length)) : null);

/** Make the address that of a conversation, or of a new chat for null. `isReplaced`: the entry before it goes. */
function setAddress(id, isReplaced = false) {
  if (id === addressed()) return;
  const address = id === null ? location.pathname + location.search : ADDRESS + encodeURIComponent(id);
  if (isReplaced) history.replaceState(null, "", address); else history.pushState(null, "", address);
}
