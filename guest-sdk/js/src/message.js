// Chat messages: objects of OpenAI's API, with all their fields, known or not.

/** Constructors and readers of messages. */
export const message = {
  system: (text) => ({ role: 'system', content: text }),
  user: (text) => ({ role: 'user', content: text }),
  assistant: (text) => ({ role: 'assistant', content: text }),
  toolResult: (callId, text) => ({ role: 'tool', content: text, tool_call_id: callId }),
  textOf,
  toolCallsOf,
  lastAssistantText,
};

/** Returns the content, or the text parts of it joined by line breaks. */
export function textOf(given) {
  const content = given?.content;
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) return '';
  return content
    .map((part) => part?.text)
    .filter((text) => typeof text === 'string')
    .join('\n');
}

/** Returns the text of the model's last message, empty if there is none. */
export function lastAssistantText(messages) {
  const last = messages.findLast((each) => each?.role === 'assistant');
  return last === undefined ? '' : textOf(last);
}

function asCallText(value) {
  if (value === undefined || value === null) return '';
  // Some servers send the arguments as an object.
  return typeof value === 'string' ? value : JSON.stringify(value);
}

/** Returns the tool calls in a message; those without a function's name are left out. */
export function toolCallsOf(given) {
  const calls = Array.isArray(given?.tool_calls) ? given.tool_calls : [];
  return calls
    .filter((call) => typeof call?.function?.name === 'string')
    .map((call) => ({
      id: asCallText(call.id),
      name: call.function.name,
      arguments: asCallText(call.function.arguments),
    }));
}
